# SPDX-License-Identifier: Apache-2.0
"""The ABI for ctypes. Written by generate_abi.py from abi/layout/v0.4.txt: change that, not this.

Structs have the names of the C headers without zf_ and _t. LAYOUT holds the golden sizes and offsets for the test that
compares them with what ctypes made. Pointers are plain addresses (c_void_p), strings that the plugin returns c_char_p.
"""
import ctypes as C

BOOTSTRAP_MAGIC = 1111967322
SCOPE_CALL = 0
SCOPE_PARAM = 1
SCOPE_INSTANCE = 2
SCOPE_PROCESS = 3
PLUGIN_NEGOTIATE_SYMBOL = "zf_plugin_negotiate"


class Error(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("status", C.c_int32),
        ("scope", C.c_int32),
        ("retryable", C.c_int32),
        ("native_code", C.c_int64),
        ("origin", C.c_char * 40),
        ("param", C.c_uint32),
        ("rank", C.c_uint32),
        ("message", C.c_char * 440),
    ]


class Bootstrap(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("magic", C.c_uint32),
        ("abis", C.c_void_p),
        ("n_abis", C.c_uint32),
        ("chosen_abi", C.c_uint32),
        ("plugin", C.c_void_p),
        ("error", C.c_void_p),
        ("reserved0", C.c_uint64),
        ("reserved1", C.c_uint64),
        ("reserved2", C.c_uint64),
    ]


ABI_0_4 = 4
OK = 0
IN_PROGRESS = 1
DISABLED = 2
SKIPPED = 3
SUBMITTED = 4
ERR_ARGUMENT = -1
ERR_ABI = -2
ERR_UNSUPPORTED_FIELD = -3
ERR_STATE = -4
ERR_CONFIG = -5
ERR_PARAM = -6
ERR_DTYPE = -7
ERR_SHAPE = -8
ERR_DEVICE = -9
ERR_MEMORY = -10
ERR_OVERWRITTEN = -11
ERR_NONFINITE = -12
ERR_TIMEOUT = -13
ERR_POISONED = -14
ERR_FORKED = -15
ERR_BUSY = -16
ERR_INTERNAL = -17
ERR_STORAGE = -18
ERR_CHECKPOINT = -19
ERR_CAPTURE = -20
ERR_RANKS = -21
ERR_RULE = -22
CHAINED_REQUIRED = 1
DTYPE_CODE_INT = 0
DTYPE_CODE_UINT = 1
DTYPE_CODE_FLOAT = 2
DTYPE_CODE_BFLOAT = 4
DTYPE_CODE_FLOAT8_E3M4 = 7
DTYPE_CODE_FLOAT8_E4M3 = 8
DTYPE_CODE_FLOAT8_E4M3B11FNUZ = 9
DTYPE_CODE_FLOAT8_E4M3FN = 10
DTYPE_CODE_FLOAT8_E4M3FNUZ = 11
DTYPE_CODE_FLOAT8_E5M2 = 12
DTYPE_CODE_FLOAT8_E5M2FNUZ = 13
DTYPE_CODE_FLOAT8_E8M0FNU = 14
DEVICE_CPU = 1
DEVICE_CUDA = 2
MAX_NDIM = 8
TENSOR_SPARSE = 1
STREAM_HOST_THREAD = 1
STREAM_CPU_QUEUE = 2
STREAM_CUDA = 3
STREAM_FLAG_CAPTURING = 1
STREAM_FLAG_PER_THREAD = 2
FENCE_NONE = 0
FENCE_STREAM_ORDER = 1
FENCE_HOST_COUNTER = 2
NO_ID = 4294967295


class Chained(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("flags", C.c_uint32),
        ("id", C.c_char_p),
        ("next", C.c_void_p),
    ]


class Dtype(C.Structure):
    _fields_ = [
        ("code", C.c_uint8),
        ("bits", C.c_uint8),
        ("lanes", C.c_uint16),
    ]


class DlTensor(C.Structure):
    _fields_ = [
        ("data", C.c_void_p),
        ("device_type", C.c_int32),
        ("device_id", C.c_int32),
        ("ndim", C.c_int32),
        ("dtype", Dtype),
        ("shape", C.c_void_p),
        ("strides", C.c_void_p),
        ("byte_offset", C.c_uint64),
    ]


class Tensor(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("flags", C.c_uint32),
        ("dl", DlTensor),
        ("nbytes", C.c_uint64),
    ]


class Stream(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("kind", C.c_int32),
        ("device_type", C.c_int32),
        ("device_id", C.c_int32),
        ("flags", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("handle", C.c_uint64),
        ("id", C.c_uint64),
    ]


class Fence(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("kind", C.c_int32),
        ("counter", C.c_void_p),
        ("value", C.c_uint64),
    ]


LOG_ERROR = 1
LOG_WARN = 2
LOG_INFO = 3
LOG_DEBUG = 4


class Host(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("ctx", C.c_void_p),
        ("name", C.c_char_p),
        ("version", C.c_char_p),
        ("get_extension", C.CFUNCTYPE(C.c_void_p, C.c_void_p, C.c_void_p)),
        ("log", C.CFUNCTYPE(None, C.c_void_p, C.c_int32, C.c_void_p, C.c_void_p, C.c_int32, C.c_void_p, C.c_uint64)),
    ]


CREATE_CAP_FETCH = 1
CREATE_CAP_SHARDS = 2
PARAM_FROZEN = 1
PARAM_TIED = 2
PARAM_NOT_IN_NORM = 16
PARAM_AVERAGE = 32
HOME_PLUGIN = 0
HOME_RESIDENT = 1
HOME_HOST = 2
CHANNELS_COLUMNS = 0
CHANNELS_ROWS = 1
CHANGED_RESET = 1
GRAD_PART = 1
GRAD_TOTAL = 2
GRAD_MORE = 4
GRAD_LAST = 8
GRAD_UNKNOWN = 16
GRAD_REPLACE = 32
GRAD_ASYNC_READ = 64
STEP_WAIT = 1
STEP_DISCARD = 2
STEP_EPOCH_END = 4
SKIP_NONE = 0
SKIP_NONFINITE = 1
RULE_ADAMW = 0
RULE_ADAM = 1
RULE_SGD = 2
RULE_SGD_NESTEROV = 3
RULE_LION = 4
RULE_CALLBACK = 5
QUIESCE_DRAIN = 1
QUIESCE_FLUSH = 2
DESTROY_FLUSH = 1


class Description(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("abi", C.c_uint32),
        ("name", C.c_char_p),
        ("version", C.c_char_p),
        ("build", C.c_char_p),
        ("required_extensions", C.c_char_p),
        ("optional_extensions", C.c_char_p),
        ("provided_extensions", C.c_char_p),
    ]


class RuleUpdate(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("group", C.c_uint32),
        ("n", C.c_uint64),
        ("n_elems", C.c_uint64),
        ("w", C.c_void_p),
        ("m", C.c_void_p),
        ("v", C.c_void_p),
        ("g", C.c_void_p),
        ("lr", C.c_double),
        ("beta1", C.c_double),
        ("beta2", C.c_double),
        ("eps", C.c_double),
        ("weight_decay", C.c_double),
    ]


class RuleMatrices(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("group", C.c_uint32),
        ("n", C.c_uint64),
        ("batch", C.c_uint64),
        ("rows", C.c_uint64),
        ("cols", C.c_uint64),
        ("batch_stride", C.c_uint64),
        ("row_stride", C.c_uint64),
        ("w", C.c_void_p),
        ("m", C.c_void_p),
        ("v", C.c_void_p),
        ("g", C.c_void_p),
        ("lr", C.c_double),
        ("beta1", C.c_double),
        ("beta2", C.c_double),
        ("eps", C.c_double),
        ("weight_decay", C.c_double),
    ]


class RuleCallback(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("n_moments", C.c_uint32),
        ("name", C.c_char_p),
        ("ctx", C.c_void_p),
        ("update", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p)),
        ("update_matrices", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p)),
    ]


class GroupDecl(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("rule", C.c_uint32),
        ("callback", C.c_void_p),
    ]


class CreateArgs(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("flags", C.c_uint32),
        ("host", C.c_void_p),
        ("config_text", C.c_char_p),
        ("config_text_nbytes", C.c_uint64),
        ("config_path", C.c_char_p),
        ("overrides", C.c_void_p),
        ("n_overrides", C.c_uint32),
        ("device_type", C.c_int32),
        ("device_id", C.c_int32),
        ("norm_group", C.c_uint32),
        ("next", C.c_void_p),
    ]


class ParamDecl(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("flags", C.c_uint32),
        ("name", C.c_char_p),
        ("tensor", C.c_void_p),
        ("grad_dtype", Dtype),
        ("group", C.c_uint32),
        ("reduce_group", C.c_uint32),
        ("reduce_group2", C.c_uint32),
        ("n_batch_axes", C.c_int32),
        ("channels", C.c_int32),
        ("tied_to", C.c_uint32),
        ("home", C.c_int32),
        ("scale", C.c_void_p),
        ("global_shape", C.c_void_p),
        ("global_offset", C.c_void_p),
        ("next", C.c_void_p),
    ]


class BindArgs(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("flags", C.c_uint32),
        ("decls", C.c_void_p),
        ("n_decls", C.c_uint32),
        ("decl_size", C.c_uint32),
        ("groups", C.c_void_p),
        ("n_groups", C.c_uint32),
        ("group_size", C.c_uint32),
        ("next", C.c_void_p),
    ]


class Layout(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("host_nbytes", C.c_uint64),
        ("device_nbytes", C.c_uint64),
        ("n_elems", C.c_uint64),
    ]


class GradItem(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("id", C.c_uint32),
        ("flags", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("tensor", C.c_void_p),
        ("first_batch", C.c_uint32),
        ("n_batches", C.c_uint32),
    ]


class GroupHyper(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("lr", C.c_double),
        ("beta1", C.c_double),
        ("beta2", C.c_double),
        ("eps", C.c_double),
        ("weight_decay", C.c_double),
    ]


class StepArgs(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("flags", C.c_uint32),
        ("groups", C.c_void_p),
        ("n_groups", C.c_uint32),
        ("elem_size", C.c_uint32),
        ("unscale", C.c_double),
        ("clip_norm", C.c_double),
        ("host_norm", C.c_void_p),
        ("stream", C.c_void_p),
        ("next", C.c_void_p),
    ]


class StepReport(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("has_report", C.c_int32),
        ("submitted_step", C.c_uint64),
        ("step", C.c_uint64),
        ("applied", C.c_int32),
        ("skip_reason", C.c_int32),
        ("nonfinite_param", C.c_uint32),
        ("n_present", C.c_uint32),
        ("grad_norm", C.c_double),
        ("clip_factor", C.c_double),
        ("n_missing", C.c_uint32),
        ("first_missing", C.c_uint32),
    ]


class ExportItem(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("id", C.c_uint32),
        ("dst", C.c_void_p),
        ("dst_nbytes", C.c_uint64),
    ]


class ParamItem(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("id", C.c_uint32),
        ("flags", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("first_batch", C.c_uint32),
        ("n_batches", C.c_uint32),
    ]


class QuiesceArgs(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("mode", C.c_int32),
        ("flags", C.c_uint32),
        ("deadline_ms", C.c_uint32),
        ("items", C.c_void_p),
        ("n_items", C.c_uint32),
        ("elem_size", C.c_uint32),
    ]


class DestroyArgs(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("flags", C.c_uint32),
    ]


class Plugin(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("abi", C.c_uint32),
        ("describe", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p)),
        ("create", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("destroy", C.CFUNCTYPE(None, C.c_void_p, C.c_void_p)),
        ("bind_params", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("params_changed", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_uint32, C.c_uint32, C.c_uint32, C.c_void_p)),
        ("announce", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("grads_ready", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_uint32, C.c_uint32, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("step", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("param_fetch", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_uint32, C.c_uint32, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("param_release", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_uint32, C.c_uint32, C.c_void_p, C.c_void_p)),
        ("quiesce", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("export_params", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_uint32, C.c_uint32, C.c_void_p)),
        ("poll", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("get_extension", C.CFUNCTYPE(C.c_void_p, C.c_void_p)),
    ]


EXT_COLLECTIVES = "zf.collectives/1"
COLLECTIVE_ALL_TO_ALL = 1
COLLECTIVE_ALL_GATHER = 2
COLLECTIVE_FOR_BIND = 1
COLLECTIVE_FOR_STEP = 2
COLLECTIVE_FOR_GRADIENTS = 3
COLLECTIVE_FOR_SUMS = 4
COLLECTIVE_FOR_NORM = 5
COLLECTIVE_FOR_VALUES = 6
COLLECTIVE_FOR_ENTERING = 7
COLLECTIVE_FOR_STATE = 8
COLLECTIVE_FOR_IMPORTANCE = 9
COLLECTIVE_FOR_PARAMETERS = 10
COLLECTIVE_FOR_TRANSPORT = 11
COLLECTIVES_INSTANCES = 1


class Collective(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("kind", C.c_int32),
        ("group", C.c_uint32),
        ("purpose", C.c_int32),
        ("bucket", C.c_uint32),
        ("lane", C.c_uint32),
        ("step", C.c_uint64),
        ("number", C.c_uint64),
        ("send", C.c_void_p),
        ("recv", C.c_void_p),
        ("nbytes", C.c_uint64),
        ("instance", C.c_uint32),
        ("reserved0", C.c_uint32),
    ]


class CollectivesExt(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("flags", C.c_uint32),
        ("ctx", C.c_void_p),
        ("group", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint32, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("start", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("test", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint64, C.c_void_p)),
        ("abort", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint64, C.c_void_p)),
    ]


EXT_CONFIG = "zf.config/1"


class ConfigKey(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("section", C.c_char_p),
        ("key", C.c_char_p),
        ("type", C.c_char_p),
        ("range", C.c_char_p),
        ("deflt", C.c_char_p),
        ("doc", C.c_char_p),
    ]


class ConfigExt(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("n_keys", C.CFUNCTYPE(C.c_uint32)),
        ("key", C.CFUNCTYPE(C.c_int32, C.c_uint32, C.c_void_p, C.c_void_p)),
        ("value", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint32, C.c_void_p, C.c_uint64, C.c_void_p)),
        ("check", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint64, C.c_void_p, C.c_uint32, C.c_void_p)),
    ]


EXT_CPU = "zf.cpu/1"


class CpuExt(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("queue_create", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("queue_destroy", C.CFUNCTYPE(None, C.c_void_p)),
        ("queue_launch", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("queue_sync", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint64, C.c_void_p)),
        ("fence_wait", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint64, C.c_void_p)),
    ]


EXT_STATS = "zf.stats/1"
COUNTER_SUM = 1
COUNTER_LEVEL = 2


class Counter(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("kind", C.c_uint32),
        ("name", C.c_char_p),
        ("unit", C.c_char_p),
        ("doc", C.c_char_p),
        ("value", C.c_uint64),
    ]


class Lateness(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("group", C.c_uint32),
        ("step", C.c_uint64),
        ("loss", C.c_double),
        ("sum", C.c_double),
        ("n_steps", C.c_uint64),
    ]


class StepRecord(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("is_finished", C.c_int32),
        ("step", C.c_uint64),
        ("applied", C.c_int32),
        ("skip_reason", C.c_int32),
        ("n_present", C.c_uint32),
        ("has_lateness", C.c_int32),
        ("grad_norm", C.c_double),
        ("clip_factor", C.c_double),
        ("lateness", C.c_double),
        ("step_ns", C.c_uint64),
    ]


class StatsExt(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("n_counters", C.CFUNCTYPE(C.c_uint32)),
        ("counter", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint32, C.c_void_p, C.c_void_p)),
        ("lateness", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint64, C.c_uint32, C.c_void_p, C.c_void_p)),
        ("step_record", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint64, C.c_void_p, C.c_void_p)),
        ("step_counter", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint64, C.c_uint32, C.c_void_p, C.c_void_p)),
    ]


EXT_STATE = "zf.state/1"
STATE_INDEX = "zf_state.json"
STATE_COMPACT = 1
STATE_PARTIAL = 2
STATE_NO_SYNC = 4
STATE_EXACT = 8


class StateStore(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("ctx", C.c_void_p),
        ("begin", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_uint64)),
        ("write", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_uint64)),
        ("end", C.CFUNCTYPE(C.c_int32, C.c_void_p)),
        ("size", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("read", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_uint64, C.c_void_p, C.c_uint64)),
    ]


class StateArgs(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("flags", C.c_uint32),
        ("path", C.c_char_p),
        ("store", C.c_void_p),
        ("note", C.c_char_p),
    ]


class StateReport(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("is_exact", C.c_int32),
        ("step", C.c_uint64),
        ("nbytes", C.c_uint64),
        ("n_params", C.c_uint32),
        ("n_missing", C.c_uint32),
        ("n_extra", C.c_uint32),
        ("note_nbytes", C.c_uint32),
        ("drain_ns", C.c_uint64),
    ]


class StateExt(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("save", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("load", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("note", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_uint64, C.c_void_p)),
        ("verify", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p)),
        ("weights", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p, C.c_uint64, C.c_void_p)),
    ]


EXT_INSPECT = "zf.inspect/0"


class InspectOut(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("n_elems", C.c_uint64),
        ("w", C.c_void_p),
        ("m", C.c_void_p),
        ("v", C.c_void_p),
        ("n", C.c_void_p),
        ("selected", C.c_void_p),
        ("importance", C.c_void_p),
    ]


class InspectExt(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("read", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint32, C.c_void_p, C.c_void_p)),
    ]


EXT_DIGEST = "zf.digest/0"
WRITTEN_LOOK = 0
WRITTEN_HOLD = 1
WRITTEN_ACCEPT = 2


class DigestExt(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("digest", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_uint32, C.c_void_p, C.c_void_p)),
        ("written", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint32, C.c_void_p, C.c_uint32, C.c_void_p, C.c_void_p)),
        ("adopt", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_uint32, C.c_void_p)),
    ]


EXT_PLAN = "zf.plan/0"


class PlanArgs(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("n_ranks", C.c_uint32),
        ("rank", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("create", C.c_void_p),
        ("bind", C.c_void_p),
    ]


class Plan(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("n_buckets", C.c_uint32),
        ("update_interval", C.c_uint32),
        ("publish_lag", C.c_uint32),
        ("host_nbytes", C.c_uint64),
        ("host_state_nbytes", C.c_uint64),
        ("host_slots_nbytes", C.c_uint64),
        ("host_publish_nbytes", C.c_uint64),
        ("device_nbytes", C.c_uint64),
        ("staging_nbytes", C.c_uint64),
        ("sums_nbytes", C.c_uint64),
        ("largest_bucket_nbytes", C.c_uint64),
        ("n_elems", C.c_uint64),
        ("n_owned_elems", C.c_uint64),
        ("n_matrices", C.c_uint64),
        ("n_channels", C.c_uint64),
        ("n_selected_elems", C.c_uint64),
        ("slots_peak_milli", C.c_uint64),
        ("slots_mean_milli", C.c_uint64),
        ("least_close_elems", C.c_uint64),
        ("most_close_elems", C.c_uint64),
        ("host_exchange_nbytes", C.c_uint64),
    ]


class PlanExt(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("plan", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_void_p, C.c_void_p)),
    ]


EXT_SHARDS = "zf.shards/0"


class ShardPlace(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("is_sharded", C.c_int32),
        ("data", C.c_void_p),
        ("nbytes", C.c_uint64),
    ]


class ShardsExt(C.Structure):
    _fields_ = [
        ("struct_size", C.c_uint32),
        ("reserved0", C.c_uint32),
        ("place", C.CFUNCTYPE(C.c_int32, C.c_void_p, C.c_uint32, C.c_void_p, C.c_void_p)),
    ]


# struct: (size, [(member, offset, size)])
LAYOUT = {
    "Error": (512, [("struct_size", 0, 4), ("status", 4, 4), ("scope", 8, 4), ("retryable", 12, 4), ("native_code", 16, 8), ("origin", 24, 40), ("param", 64, 4), ("rank", 68, 4), ("message", 72, 440)]),
    "Bootstrap": (64, [("struct_size", 0, 4), ("magic", 4, 4), ("abis", 8, 8), ("n_abis", 16, 4), ("chosen_abi", 20, 4), ("plugin", 24, 8), ("error", 32, 8), ("reserved0", 40, 8), ("reserved1", 48, 8), ("reserved2", 56, 8)]),
    "Chained": (24, [("struct_size", 0, 4), ("flags", 4, 4), ("id", 8, 8), ("next", 16, 8)]),
    "Dtype": (4, [("code", 0, 1), ("bits", 1, 1), ("lanes", 2, 2)]),
    "DlTensor": (48, [("data", 0, 8), ("device_type", 8, 4), ("device_id", 12, 4), ("ndim", 16, 4), ("dtype", 20, 4), ("shape", 24, 8), ("strides", 32, 8), ("byte_offset", 40, 8)]),
    "Tensor": (64, [("struct_size", 0, 4), ("flags", 4, 4), ("dl", 8, 48), ("nbytes", 56, 8)]),
    "Stream": (40, [("struct_size", 0, 4), ("kind", 4, 4), ("device_type", 8, 4), ("device_id", 12, 4), ("flags", 16, 4), ("reserved0", 20, 4), ("handle", 24, 8), ("id", 32, 8)]),
    "Fence": (24, [("struct_size", 0, 4), ("kind", 4, 4), ("counter", 8, 8), ("value", 16, 8)]),
    "Host": (48, [("struct_size", 0, 4), ("reserved0", 4, 4), ("ctx", 8, 8), ("name", 16, 8), ("version", 24, 8), ("get_extension", 32, 8), ("log", 40, 8)]),
    "Description": (56, [("struct_size", 0, 4), ("abi", 4, 4), ("name", 8, 8), ("version", 16, 8), ("build", 24, 8), ("required_extensions", 32, 8), ("optional_extensions", 40, 8), ("provided_extensions", 48, 8)]),
    "RuleUpdate": (96, [("struct_size", 0, 4), ("group", 4, 4), ("n", 8, 8), ("n_elems", 16, 8), ("w", 24, 8), ("m", 32, 8), ("v", 40, 8), ("g", 48, 8), ("lr", 56, 8), ("beta1", 64, 8), ("beta2", 72, 8), ("eps", 80, 8), ("weight_decay", 88, 8)]),
    "RuleMatrices": (128, [("struct_size", 0, 4), ("group", 4, 4), ("n", 8, 8), ("batch", 16, 8), ("rows", 24, 8), ("cols", 32, 8), ("batch_stride", 40, 8), ("row_stride", 48, 8), ("w", 56, 8), ("m", 64, 8), ("v", 72, 8), ("g", 80, 8), ("lr", 88, 8), ("beta1", 96, 8), ("beta2", 104, 8), ("eps", 112, 8), ("weight_decay", 120, 8)]),
    "RuleCallback": (40, [("struct_size", 0, 4), ("n_moments", 4, 4), ("name", 8, 8), ("ctx", 16, 8), ("update", 24, 8), ("update_matrices", 32, 8)]),
    "GroupDecl": (16, [("struct_size", 0, 4), ("rule", 4, 4), ("callback", 8, 8)]),
    "CreateArgs": (72, [("struct_size", 0, 4), ("flags", 4, 4), ("host", 8, 8), ("config_text", 16, 8), ("config_text_nbytes", 24, 8), ("config_path", 32, 8), ("overrides", 40, 8), ("n_overrides", 48, 4), ("device_type", 52, 4), ("device_id", 56, 4), ("norm_group", 60, 4), ("next", 64, 8)]),
    "ParamDecl": (88, [("struct_size", 0, 4), ("flags", 4, 4), ("name", 8, 8), ("tensor", 16, 8), ("grad_dtype", 24, 4), ("group", 28, 4), ("reduce_group", 32, 4), ("reduce_group2", 36, 4), ("n_batch_axes", 40, 4), ("channels", 44, 4), ("tied_to", 48, 4), ("home", 52, 4), ("scale", 56, 8), ("global_shape", 64, 8), ("global_offset", 72, 8), ("next", 80, 8)]),
    "BindArgs": (48, [("struct_size", 0, 4), ("flags", 4, 4), ("decls", 8, 8), ("n_decls", 16, 4), ("decl_size", 20, 4), ("groups", 24, 8), ("n_groups", 32, 4), ("group_size", 36, 4), ("next", 40, 8)]),
    "Layout": (32, [("struct_size", 0, 4), ("reserved0", 4, 4), ("host_nbytes", 8, 8), ("device_nbytes", 16, 8), ("n_elems", 24, 8)]),
    "GradItem": (32, [("struct_size", 0, 4), ("id", 4, 4), ("flags", 8, 4), ("reserved0", 12, 4), ("tensor", 16, 8), ("first_batch", 24, 4), ("n_batches", 28, 4)]),
    "GroupHyper": (48, [("struct_size", 0, 4), ("reserved0", 4, 4), ("lr", 8, 8), ("beta1", 16, 8), ("beta2", 24, 8), ("eps", 32, 8), ("weight_decay", 40, 8)]),
    "StepArgs": (64, [("struct_size", 0, 4), ("flags", 4, 4), ("groups", 8, 8), ("n_groups", 16, 4), ("elem_size", 20, 4), ("unscale", 24, 8), ("clip_norm", 32, 8), ("host_norm", 40, 8), ("stream", 48, 8), ("next", 56, 8)]),
    "StepReport": (64, [("struct_size", 0, 4), ("has_report", 4, 4), ("submitted_step", 8, 8), ("step", 16, 8), ("applied", 24, 4), ("skip_reason", 28, 4), ("nonfinite_param", 32, 4), ("n_present", 36, 4), ("grad_norm", 40, 8), ("clip_factor", 48, 8), ("n_missing", 56, 4), ("first_missing", 60, 4)]),
    "ExportItem": (24, [("struct_size", 0, 4), ("id", 4, 4), ("dst", 8, 8), ("dst_nbytes", 16, 8)]),
    "ParamItem": (24, [("struct_size", 0, 4), ("id", 4, 4), ("flags", 8, 4), ("reserved0", 12, 4), ("first_batch", 16, 4), ("n_batches", 20, 4)]),
    "QuiesceArgs": (32, [("struct_size", 0, 4), ("mode", 4, 4), ("flags", 8, 4), ("deadline_ms", 12, 4), ("items", 16, 8), ("n_items", 24, 4), ("elem_size", 28, 4)]),
    "DestroyArgs": (8, [("struct_size", 0, 4), ("flags", 4, 4)]),
    "Plugin": (120, [("struct_size", 0, 4), ("abi", 4, 4), ("describe", 8, 8), ("create", 16, 8), ("destroy", 24, 8), ("bind_params", 32, 8), ("params_changed", 40, 8), ("announce", 48, 8), ("grads_ready", 56, 8), ("step", 64, 8), ("param_fetch", 72, 8), ("param_release", 80, 8), ("quiesce", 88, 8), ("export_params", 96, 8), ("poll", 104, 8), ("get_extension", 112, 8)]),
    "Collective": (72, [("struct_size", 0, 4), ("kind", 4, 4), ("group", 8, 4), ("purpose", 12, 4), ("bucket", 16, 4), ("lane", 20, 4), ("step", 24, 8), ("number", 32, 8), ("send", 40, 8), ("recv", 48, 8), ("nbytes", 56, 8), ("instance", 64, 4), ("reserved0", 68, 4)]),
    "CollectivesExt": (48, [("struct_size", 0, 4), ("flags", 4, 4), ("ctx", 8, 8), ("group", 16, 8), ("start", 24, 8), ("test", 32, 8), ("abort", 40, 8)]),
    "ConfigKey": (56, [("struct_size", 0, 4), ("reserved0", 4, 4), ("section", 8, 8), ("key", 16, 8), ("type", 24, 8), ("range", 32, 8), ("deflt", 40, 8), ("doc", 48, 8)]),
    "ConfigExt": (40, [("struct_size", 0, 4), ("reserved0", 4, 4), ("n_keys", 8, 8), ("key", 16, 8), ("value", 24, 8), ("check", 32, 8)]),
    "CpuExt": (48, [("struct_size", 0, 4), ("reserved0", 4, 4), ("queue_create", 8, 8), ("queue_destroy", 16, 8), ("queue_launch", 24, 8), ("queue_sync", 32, 8), ("fence_wait", 40, 8)]),
    "Counter": (40, [("struct_size", 0, 4), ("kind", 4, 4), ("name", 8, 8), ("unit", 16, 8), ("doc", 24, 8), ("value", 32, 8)]),
    "Lateness": (40, [("struct_size", 0, 4), ("group", 4, 4), ("step", 8, 8), ("loss", 16, 8), ("sum", 24, 8), ("n_steps", 32, 8)]),
    "StepRecord": (64, [("struct_size", 0, 4), ("is_finished", 4, 4), ("step", 8, 8), ("applied", 16, 4), ("skip_reason", 20, 4), ("n_present", 24, 4), ("has_lateness", 28, 4), ("grad_norm", 32, 8), ("clip_factor", 40, 8), ("lateness", 48, 8), ("step_ns", 56, 8)]),
    "StatsExt": (48, [("struct_size", 0, 4), ("reserved0", 4, 4), ("n_counters", 8, 8), ("counter", 16, 8), ("lateness", 24, 8), ("step_record", 32, 8), ("step_counter", 40, 8)]),
    "StateStore": (56, [("struct_size", 0, 4), ("reserved0", 4, 4), ("ctx", 8, 8), ("begin", 16, 8), ("write", 24, 8), ("end", 32, 8), ("size", 40, 8), ("read", 48, 8)]),
    "StateArgs": (32, [("struct_size", 0, 4), ("flags", 4, 4), ("path", 8, 8), ("store", 16, 8), ("note", 24, 8)]),
    "StateReport": (48, [("struct_size", 0, 4), ("is_exact", 4, 4), ("step", 8, 8), ("nbytes", 16, 8), ("n_params", 24, 4), ("n_missing", 28, 4), ("n_extra", 32, 4), ("note_nbytes", 36, 4), ("drain_ns", 40, 8)]),
    "StateExt": (48, [("struct_size", 0, 4), ("reserved0", 4, 4), ("save", 8, 8), ("load", 16, 8), ("note", 24, 8), ("verify", 32, 8), ("weights", 40, 8)]),
    "InspectOut": (64, [("struct_size", 0, 4), ("reserved0", 4, 4), ("n_elems", 8, 8), ("w", 16, 8), ("m", 24, 8), ("v", 32, 8), ("n", 40, 8), ("selected", 48, 8), ("importance", 56, 8)]),
    "InspectExt": (16, [("struct_size", 0, 4), ("reserved0", 4, 4), ("read", 8, 8)]),
    "DigestExt": (32, [("struct_size", 0, 4), ("reserved0", 4, 4), ("digest", 8, 8), ("written", 16, 8), ("adopt", 24, 8)]),
    "PlanArgs": (32, [("struct_size", 0, 4), ("n_ranks", 4, 4), ("rank", 8, 4), ("reserved0", 12, 4), ("create", 16, 8), ("bind", 24, 8)]),
    "Plan": (160, [("struct_size", 0, 4), ("n_buckets", 4, 4), ("update_interval", 8, 4), ("publish_lag", 12, 4), ("host_nbytes", 16, 8), ("host_state_nbytes", 24, 8), ("host_slots_nbytes", 32, 8), ("host_publish_nbytes", 40, 8), ("device_nbytes", 48, 8), ("staging_nbytes", 56, 8), ("sums_nbytes", 64, 8), ("largest_bucket_nbytes", 72, 8), ("n_elems", 80, 8), ("n_owned_elems", 88, 8), ("n_matrices", 96, 8), ("n_channels", 104, 8), ("n_selected_elems", 112, 8), ("slots_peak_milli", 120, 8), ("slots_mean_milli", 128, 8), ("least_close_elems", 136, 8), ("most_close_elems", 144, 8), ("host_exchange_nbytes", 152, 8)]),
    "PlanExt": (16, [("struct_size", 0, 4), ("reserved0", 4, 4), ("plan", 8, 8)]),
    "ShardPlace": (24, [("struct_size", 0, 4), ("is_sharded", 4, 4), ("data", 8, 8), ("nbytes", 16, 8)]),
    "ShardsExt": (16, [("struct_size", 0, 4), ("reserved0", 4, 4), ("place", 8, 8)]),
}
