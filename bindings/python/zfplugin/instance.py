# SPDX-License-Identifier: Apache-2.0
"""One optimizer of the plugin, for any framework: parameters in, gradients in, steps.

    with zfplugin.Instance(config={"zenflow.topk_ratio": 0.1}) as opt:
        opt.bind([zfplugin.Param("w", w), zfplugin.Param("b", b, group=1)])
        opt.grads_ready([(0, grad_w), (1, grad_b)])
        report = opt.step([zfplugin.Hyper(lr=1e-3), zfplugin.Hyper(lr=1e-3, weight_decay=0.0)])
        opt.flush()

Model: a thin object over the negotiated table; the host computes on the calling thread (ZF_STREAM_HOST_THREAD), so a
hook has finished with the caller's memory when it returns, except where async_read says otherwise. Where it enqueues its
work on streams instead, place= says so (places.py): hooks are in stream order then, and return at once. Every method raises
a class of errors.py and has then changed nothing. Hooks may come from several threads: a lock keeps them apart, since
ctypes lets go of the interpreter's lock in a foreign call.

zfplugin.torch builds on this and keeps its own arrays of descriptors for the two hot calls.
"""
import contextlib
import ctypes as C
import dataclasses
import difflib
import itertools
import logging
import os
import re
import threading
import weakref

from . import _abi, errors, library, places, progress, signals, tensors
from .rules import RULES, MatrixRule, RuleCallback, matrix_rules
from .version import VERSION

_LEVELS = {_abi.LOG_ERROR: logging.ERROR, _abi.LOG_WARN: logging.WARNING, _abi.LOG_INFO: logging.INFO,
           _abi.LOG_DEBUG: logging.DEBUG}
FENCE_TIMEOUT_NS = 600 * 10**9


@dataclasses.dataclass
class Param:
    """Declaration of a parameter. tensor: float32, bfloat16 or float16, kept alive by the instance. grad_dtype: (code, bits) of
    zfplugin.tensors, None = the tensor's. tied_to: position in the same bind() of the parameter whose memory it
    shares. channels: "columns" ([out, in]) or "rows" ([in, out]). average: with several ranks its gradient is their average,
    else their sum."""

    name: str
    tensor: object
    group: int = 0
    frozen: bool = False
    tied_to: int = None
    home: str = "plugin"  # or "resident", "host": where it is updated
    counts_in_norm: bool = True
    grad_dtype: tuple = None
    n_batch_axes: int = 0
    channels: str = "columns"
    average: bool = False
    carries: bool = False   # gradients come in its memory, too (ZF_PARAM_CARRIES)
    reduce_group: int = 0   # process groups of its gradient, as zf_param_decl_t says
    reduce_group2: int = 0
    origin: object = None   # whatever names the memory that the tensor is a copy of: one instance trains it


@dataclasses.dataclass
class Hyper:
    """Optimizer settings of one parameter group for one step (AdamW)."""

    lr: float
    betas: tuple = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0


@dataclasses.dataclass(frozen=True)
class Report:
    """The facts known after a step (zf_step_report_t). step is the newest finished one, submitted_step the last."""

    has_report: bool
    submitted_step: int
    step: int
    applied: bool
    skip_reason: str
    nonfinite_param: int  # id, or None
    n_present: int
    grad_norm: float
    clip_factor: float
    nonfinite_rank: int  # of several: whose own gradient was not finite, or None


_SKIP_REASONS = {_abi.SKIP_NONE: "", _abi.SKIP_NONFINITE: "nonfinite"}


def _report(raw):
    values = {field.name: getattr(raw, field.name) for field in dataclasses.fields(Report)}
    values["has_report"], values["applied"] = bool(raw.has_report), bool(raw.applied)
    values["skip_reason"] = _SKIP_REASONS[raw.skip_reason]
    if raw.nonfinite_param == _abi.NO_ID:
        values["nonfinite_param"] = None
    if not raw.has_nonfinite_rank:
        values["nonfinite_rank"] = None
    return Report(**values)


def _config_lines(config):
    """A dict, flat or of sections, as a list of "section.key=value"."""
    flat = {name: value for key, section in config.items() for name, value in (
        ((f"{key}.{name}", value) for name, value in section.items()) if isinstance(section, dict) else ((key, section),))}
    return [f"{key}={str(value).lower() if isinstance(value, bool) else value}" for key, value in flat.items()]


def _split_config(config):
    """The config argument as (INI texts, paths, overrides)."""
    texts, paths, lines = [], [], []
    for one in config if isinstance(config, (list, tuple)) else () if config is None else (config,):
        if isinstance(one, dict):
            lines += _config_lines(one)
        elif isinstance(one, str) and re.match(r"\w+(\.\w+)? *=.*$", one) and not os.path.exists(one):
            lines.append(one)
        elif isinstance(one, str) and ("\n" in one or "[" in one):
            texts.append(one)
        elif isinstance(one, (str, bytes, os.PathLike)):
            paths.append(os.fspath(one))
        else:
            raise errors.ArgumentError(f"config has a {type(one).__name__}; need the path of an INI file, INI text, a dict such as "
                                       '{"zenflow.topk_ratio": 0.1}, "section.key=value", or a list of these')
    if len(texts) + len(paths) > 1:
        raise errors.ArgumentError(f"config has {len(texts) + len(paths)} INI files or texts; need one at most: write the others as dicts")
    return next(iter(texts), None), next(iter(paths), None), lines


def _check_sections(lines, library_):
    """Raises ConfigError for an override without its section, with the key that is meant."""
    for line in lines:
        name = line.partition("=")[0].strip()
        if "." in name or not name:
            continue
        full = {key["key"]: f"{key['section']}.{key['key']}" for key in library_.config_keys()}
        near = [full[key] for key in difflib.get_close_matches(name, full, n=1)]
        raise errors.ConfigError(f'"{name}" lacks its section: ' + (f'"{near[0]}"' if near else
                                 "keys are section.key, and zfplugin.load().config_keys() lists them"))


def _make_host(logger, ctx_name, collectives):
    """The host table with its callbacks; both must outlive the instance."""

    def get_extension(_ctx, name):
        return collectives.extension(C.string_at(name))

    def log(_ctx, level, component, _file, _line, message, nbytes):
        text = C.string_at(message, nbytes).decode("utf-8", "replace") if message else ""
        part = C.string_at(component).decode("utf-8", "replace") if component else ""
        logger.log(_LEVELS.get(level, logging.INFO), "%s: %s", part, text)

    host = _abi.Host(struct_size=C.sizeof(_abi.Host), name=ctx_name.encode(), version=VERSION.encode())
    host.log = type(host.log)(log)
    if collectives is not None:
        host.get_extension = type(host.get_extension)(get_extension)
    return host


_HOOKS = {"announce", "grads_ready", "step", "discard", "param_fetch", "release", "resume"}
_RESTING = {"bind", "params_changed", "drain", "flush", "export", "save", "load", "release"}
_bound = weakref.WeakSet()  # instances that hold memory; the plugin lets one instance train it


class Instance:
    """See the head of this file. config: path of an INI file, INI text, dict {"section.key": value}, "section.key=value", a
    list of these, or None = the defaults. A file or text holds first, then the others in their order. fetch: the caller promises to
    call fetch() before it reads parameters. rule: a key of RULES, or a RuleCallback. log: a logging.Logger.
    before: overrides that come before those of config. place: where the caller computes (places.py).
    collectives: a Collectives (collectives.py), where this is one of several ranks that train as one; None = this one alone.
    norm_group: the number, in collectives, of the group of all processes that train one model together; 0 = group 0.
    releasable: release() will be called; bind() maps as much page-locked host memory for it as device memory."""

    def __init__(self, config=None, *, fetch=False, rule="adamw", lib=None, log=None, name="python", before=(), collectives=None,
                 place=places.HOST_THREAD, norm_group=0, releasable=False):
        callback = rule if isinstance(rule, RuleCallback) else None
        if callback is None and (not isinstance(rule, str) or rule not in RULES):
            raise errors.ArgumentError(f"rule = {rule!r}; allowed: {', '.join(RULES)}, a zfplugin.RuleCallback")
        self.lib = lib if isinstance(lib, library.Library) else library.load(lib)
        self.table = self.lib.table
        self.lock = threading.RLock()
        self.log = log or logging.getLogger("zfplugin")
        self.is_fetching = fetch
        self.come_together = None  # told of each call before it, where there are several ranks
        self.before_rest = None  # called before what brings the instance to rest: values that wait to be fetched come then
        self.update_matrices = None  # of groups with a MatrixRule: a function of a step's list of zf_matrix_update_t; what it raises ends this instance
        self.problem, self._matrices = None, None
        self.settle_all = None  # brings all updates into place, before this instance is ended
        self.params = []
        self.layout = None
        self.place = place
        self.stream = _abi.Stream(struct_size=C.sizeof(_abi.Stream), kind=place.kind, device_type=place.device_type,
                                  device_id=place.number)
        self._host = _make_host(self.log, name, collectives)
        self._rule = RULES[rule] if callback is None else _abi.RULE_CALLBACK
        self._rules = ()  # of groups that have one of their own
        self._callback = callback.fill() if callback is not None else None
        self._norm_group = norm_group
        self.is_released = False
        flags = (_abi.CREATE_CAP_FETCH if fetch else 0) | (_abi.CREATE_CAP_RELEASE if releasable else 0)
        self.handle = self._create(config, before, flags)
        kept = (self._host, self.lib, callback, collectives)
        self._finalizer = weakref.finalize(self, _destroy, self.table.destroy, self.handle, kept)
        self._places = frozenset()
        self.on_superseded = self._finalizer  # called where a newer instance takes the same memory over

    def _create(self, config, before, flags):
        text, path, lines = _split_config(config)
        lines = [*before, *lines]
        _check_sections(lines, self.lib)
        raw, record, out = text.encode() if text is not None else None, errors.new_record(), C.c_void_p()
        array = library.string_array(lines)
        args = _abi.CreateArgs(
            struct_size=C.sizeof(_abi.CreateArgs), flags=flags,
            host=C.addressof(self._host), config_text=raw, config_text_nbytes=len(raw) if raw is not None else 0,
            config_path=os.fsencode(path) if path is not None else None,
            overrides=C.addressof(array) if array else None, n_overrides=len(lines), device_type=self.place.device_type,
            device_id=self.place.number, norm_group=self._norm_group)
        self.lib.check(signals.call(self.table.create, C.byref(args), C.byref(out), C.byref(record)), record, "create")
        return out.value

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def __reduce__(self):
        raise TypeError("a zfplugin instance lives in one process and cannot be pickled or copied: save its state and "
                        "load it into a new one")

    def close(self):
        """Ends the instance. Parameters keep their values; what is on its way is lost: flush() first. Idempotent."""
        self._finalizer()

    @property
    def is_closed(self):
        return not self._finalizer.alive

    def call(self, slot, *args, doing):
        """One foreign call under the lock; raises for a negative status."""
        if self.is_closed:
            raise errors.StateError(f"{doing}: this instance was closed")
        if self.come_together is not None:
            self.come_together(doing)
        if self.before_rest is not None and doing in _RESTING and not self.is_released:
            self.before_rest()
        record = errors.new_record()
        with self.lock:
            if self.place.is_stream:
                self._say_where(doing)
            try:
                return self.lib.check(signals.call(slot, self.handle, *args, C.byref(record)), record, doing)
            except errors.ZfError as error:
                raise error from self.problem

    def _say_where(self, doing):
        """Hooks are told the stream of now. What is no hook reads and writes memory at once: what was enqueued is done before."""
        if doing in _HOOKS:
            places.tell(self.stream, self.place.current())
        elif doing in _RESTING or doing in ("written", "adopt"):
            self.place.finish()

    # ---- parameters --------------------------------------------------------------------------------------------------

    def bind(self, params, rules=None):
        """Declares the parameters, plans and takes all memory; returns their ids. rules: by group a key of RULES, a MatrixRule, or None = the
        instance's own; not given: as before. A group keeps its rule. Again: the same declarations with other
        memory that holds the values go on; another set ends all windows, keeps what is trained in both by name and shape,
        and begins the schedule again. Gradients that were delivered and not stepped are dropped then."""
        params = list(params)
        views = [self._view(param.tensor, f'"{param.name}"', param.name) for param in params]
        decls = (_abi.ParamDecl * max(1, len(params)))()
        names = [param.name.encode() for param in params]
        for i, (param, view) in enumerate(zip(params, views)):
            _fill_decl(decls[i], param, view, names[i])
        held = frozenset(param.origin or view.struct.dl.data for param, view in zip(params, views)
                         if not param.frozen and view.struct.dl.data)
        self._end_older(held)
        ids, layout = (C.c_uint32 * max(1, len(params)))(), _abi.BindReport(struct_size=C.sizeof(_abi.BindReport))
        rules = self._rules if rules is None else tuple(rules)
        groups = self._groups(1 + max((param.group for param in params), default=0), rules)
        args = _abi.BindArgs(struct_size=C.sizeof(_abi.BindArgs), decls=C.addressof(decls), n_decls=len(params),
                             decl_size=C.sizeof(_abi.ParamDecl), groups=C.addressof(groups), n_groups=len(groups),
                             group_size=C.sizeof(_abi.GroupDecl))
        if any(isinstance(rule, MatrixRule) for rule in rules):
            self._matrices = self._matrices or matrix_rules(self)
            args.next = C.addressof(self._matrices)
        with progress.Line("zfplugin", after=progress.LONG) as line:
            line.show("taking memory for masters and moments")
            self.call(self.table.bind_params, C.byref(args), ids, C.byref(layout), doing="bind")
        self._places, self._rules = held, rules
        _bound.add(self)
        self.params = params
        self._views = views
        self.layout = {name: getattr(layout, name) for name, _ in _abi.BindReport._fields_[2:]}
        return list(ids)[:len(params)]

    def _groups(self, n, rules):
        groups, own = (_abi.GroupDecl * n)(), C.addressof(self._callback) if self._callback is not None else None
        for group, rule in itertools.zip_longest(groups, rules[:n]):
            group.struct_size = C.sizeof(_abi.GroupDecl)
            if isinstance(rule, MatrixRule):
                groups.kept = [*getattr(groups, "kept", ()), rule.fill()]
                group.rule, group.callback = _abi.RULE_CALLBACK, C.addressof(groups.kept[-1])
                continue
            if rule is not None and rule not in RULES:
                raise errors.ArgumentError(f"rule = {rule!r}; allowed: {', '.join(RULES)}")
            group.rule, group.callback = (self._rule, own) if rule is None else (RULES[rule], None)
        return groups

    def _view(self, array, what, name):
        view, place = tensors.view(array, name), self.place
        dl = view.struct.dl
        if (dl.device_type, dl.device_id) != (place.device_type, place.number) and dl.data:
            raise errors.DeviceError(f"{what} is not on {place.name}, where this instance trains")
        return view

    def _end_older(self, held):
        """An optimizer that was replaced lives on for as long as anything refers to it (a scheduler does), and the plugin
        refuses memory that a live instance trains: the older one ends here."""
        for other in list(_bound):
            shared = held & other._places
            if other is self or other.is_closed or not shared:
                continue
            self.log.warning("%d parameters are taken over from an older instance, which is closed%s; flush() and close() an optimizer before "
                             "its successor takes a step", len(shared),
                             "" if other.settle_all is not None else ": what it had not yet published is lost")
            other.on_superseded()

    def params_changed(self, ids, reset=False):
        """The caller wrote these parameters: masters follow, moments are kept unless reset. ids: as of fetch()."""
        array = _named(ids)
        self.call(self.table.params_changed, array, len(ids), C.sizeof(_abi.ParamItem),
                  _abi.CHANGED_RESET if reset else 0, doing="params_changed")

    def fetch(self, ids=()):
        """Waits until the current values of these parameters (none given: of all) are in place. An id, or (id, first, n):
        the matrices first ... first + n - 1 of a parameter with batch axes."""
        self.wait(self.start_fetch(ids))

    def start_fetch(self, ids=()):
        """As fetch(), which waits: the fence for it."""
        array = _named(ids) if ids else None
        fence = _abi.Fence(struct_size=C.sizeof(_abi.Fence))
        self.call(self.table.param_fetch, array, len(ids), C.sizeof(_abi.ParamItem), C.byref(self.stream),
                  C.byref(fence), doing="param_fetch")
        return fence

    @staticmethod
    def is_over(fence):
        """Whether there is nothing to wait for."""
        return fence.kind != _abi.FENCE_HOST_COUNTER or C.c_uint64.from_address(fence.counter).value >= fence.value

    def wait(self, fence, timeout_ns=FENCE_TIMEOUT_NS):
        """Waits on this thread for a fence that a hook returned."""
        if fence.kind in (_abi.FENCE_NONE, _abi.FENCE_STREAM_ORDER):
            return  # or holds for what is enqueued from now on
        record = errors.new_record()
        status = self.table.fence_wait(self.handle, C.byref(fence), timeout_ns, C.byref(record))
        if record.scope == _abi.SCOPE_INSTANCE:
            self.call(self.table.poll, None, doing="poll")  # raises the same, once nothing reads gradients any more
        self.lib.check(status, record, "fence_wait")

    # ---- training ----------------------------------------------------------------------------------------------------

    def grads_ready(self, items, flags=_abi.GRAD_TOTAL | _abi.GRAD_UNKNOWN):
        """items: (id, gradient) or (id, gradient, flags). Without GRAD_ASYNC_READ the memory is free on return."""
        items = list(items)
        array, views = (_abi.GradItem * max(1, len(items)))(), []
        for i, (number, gradient, *own) in enumerate(items):
            name = self.params[number].name if number < len(self.params) else f"id {number}"
            views.append(self._view(gradient, f"the gradient of {name}", f"gradient of {name}"))
            array[i].struct_size, array[i].id = C.sizeof(_abi.GradItem), number
            array[i].flags = own[0] if own else flags
            array[i].tensor = views[-1].address
        self.call(self.table.grads_ready, array, len(items), C.sizeof(_abi.GradItem), C.byref(self.stream), None,
                  doing="grads_ready")

    def step(self, groups, *, unscale=1.0, clip_norm=0.0, host_norm=None, wait=False, discard=False, epoch_end=False):
        """One optimizer step over what was delivered. groups: one Hyper per parameter group. host_norm: the gradients' norm as
        a number, where the caller computes on this thread. Returns a Report."""
        if host_norm is not None and self.place.is_stream:
            raise errors.ArgumentError("step: host_norm is a number of this thread, but on a stream the device reads it, later "
                                       "and in its own memory: leave it out, and clip with clip_norm")
        array = (_abi.GroupHyper * max(1, len(groups)))()
        for out, group in zip(array, groups):
            out.struct_size = C.sizeof(_abi.GroupHyper)
            out.lr, out.eps, out.weight_decay = group.lr, group.eps, group.weight_decay
            out.beta1, out.beta2 = group.betas
        norm = C.c_double(host_norm) if host_norm is not None else None
        args = _abi.StepArgs(
            struct_size=C.sizeof(_abi.StepArgs), groups=C.addressof(array), n_groups=len(groups),
            flags=(_abi.STEP_WAIT * wait) | (_abi.STEP_DISCARD * discard) | (_abi.STEP_EPOCH_END * epoch_end),
            elem_size=C.sizeof(_abi.GroupHyper), unscale=unscale, clip_norm=clip_norm,
            host_norm=C.addressof(norm) if norm is not None else None, stream=C.addressof(self.stream))
        report = _abi.StepReport(struct_size=C.sizeof(_abi.StepReport))
        self.call(self.table.step, C.byref(args), C.byref(report), doing="step")
        return _report(report)

    def poll(self):
        """The newest finished Report; raises an error that came late."""
        report = _abi.StepReport(struct_size=C.sizeof(_abi.StepReport))
        self.call(self.table.poll, C.byref(report), doing="poll")
        return _report(report)

    @contextlib.contextmanager
    def unfetched(self):
        """Within it, what brings the instance to rest fetches nothing for the trainer."""
        hook, self.before_rest = self.before_rest, None
        try:
            yield
        finally:
            self.before_rest = hook

    def drain(self):
        """Ends transfers and updates in flight; schedule and visible values stay as they are."""
        self._quiesce(_abi.QUIESCE_DRAIN, "drain")

    def flush(self):
        """Closes every window now: afterwards the parameters are the final weights."""
        self._quiesce(_abi.QUIESCE_FLUSH, "flush")

    def _quiesce(self, mode, doing):
        args = _abi.QuiesceArgs(struct_size=C.sizeof(_abi.QuiesceArgs), mode=mode)
        self.call(self.table.quiesce, C.byref(args), doing=doing)

    def _residency(self):
        ext = self.lib.extension(_abi.EXT_RESIDENCY, _abi.ResidencyExt)
        if ext is None:
            raise errors.UnsupportedFieldError("this plugin has no zf.residency/1: its device memory cannot be released")
        return ext

    def release(self, pinned=False):
        """Gives all of the plugin's device memory back to the driver until resume(); its contents go to the host memory that
        releasable=True has planned. pinned: that and all other host memory is no longer page-locked either. Meanwhile export, save,
        stats and close work, and nothing else."""
        what = _abi.RELEASE_DEVICE | (_abi.RELEASE_PINNED if pinned else 0)
        self.call(self._residency().release, what, C.byref(self.stream), None, doing="release")
        self.is_released = True

    def resume(self):
        """Takes the memory again, and what was in it. OutOfMemory: all is released as before; call it again."""
        self.call(self._residency().resume, C.byref(self.stream), None, doing="resume")
        self.is_released = False

    def export(self, destinations):
        """The fp32 weights that flush() would give, into memory of the caller: {id: contiguous float32 array}."""
        array, views = (_abi.ExportItem * max(1, len(destinations)))(), []
        for out, (number, destination) in zip(array, destinations.items()):
            view = tensors.view(destination, f"destination of id {number}")
            if view.struct.dl.strides or view.struct.dl.dtype.bits != 32:
                raise errors.ArgumentError(f"destination of id {number}: need writable contiguous float32 memory")
            views.append(view)
            out.struct_size, out.id, out.dst = C.sizeof(_abi.ExportItem), number, view.struct.dl.data
            out.dst_nbytes = view.struct.nbytes
        self.call(self.table.export_params, array, len(destinations), C.sizeof(_abi.ExportItem), doing="export")

    # ---- what is going on --------------------------------------------------------------------------------------------

    def _counters(self, read):
        """{name: value} of zf.stats/1; read(extension) fills one counter: (number, its address)."""
        ext, out = self.lib.extension(_abi.EXT_STATS, _abi.StatsExt), {}
        for i in range(ext.n_counters() if ext is not None else 0):
            counter = _abi.Counter(struct_size=C.sizeof(_abi.Counter))
            read(ext, i, C.byref(counter))
            out[counter.name.decode()] = counter.value
        return out

    def stats(self):
        """Counters of zf.stats/1 as a dict (docs/counters.md); {} where the plugin has none."""
        return self._counters(lambda ext, i, counter: self.call(ext.counter, i, counter, doing="stats"))

    def step_record(self, step=0):
        """The parts of a step's time, as a dict: zf_step_record_t, whose report is 0 until it is_finished, and what each counter
        of stats() grew by from the end of the step before to its own (of a level: what it was). step 0: the newest that is
        known to be finished. None where the step is not kept (128 are), not submitted, or the plugin tells none."""
        ext = self.lib.extension(_abi.EXT_STATS, _abi.StatsExt)
        if ext is None:
            return None
        got = _abi.StepRecord(struct_size=C.sizeof(_abi.StepRecord))
        self.call(ext.step_record, step, C.byref(got), doing="step_record")
        out = {name: getattr(got, name) for name, _ in _abi.StepRecord._fields_[1:]}
        out["skip_reason"] = _SKIP_REASONS[got.skip_reason]
        for name in ("is_finished", "applied"):
            out[name] = bool(out[name])
        if not got.step:
            return None
        return {**self._counters(lambda ext, i, counter: self.call(ext.step_counter, got.step, i, counter,
                                                                   doing="step_record")), **out}

    @property
    def digest_function(self):
        """zf.digest/0 as it is, for callers with descriptors of their own: status = function(handle, address of n tensor
        addresses, n, address of n uint64, address of an error record or None). None where the plugin has none."""
        ext = self.lib.extension(_abi.EXT_DIGEST, _abi.DigestExt)
        return ext.digest if ext is not None else None

    def written(self, ids, flags=_abi.WRITTEN_LOOK):
        """Those of these parameters that are not what the plugin put there last: others wrote them, and did not write
        them back. flags: _abi.WRITTEN_... (zf/ext/draft/digest.h)."""
        ids, ext = list(ids), self.lib.extension(_abi.EXT_DIGEST, _abi.DigestExt)
        if ext is None or not ext.written:
            raise errors.UnsupportedFieldError("this plugin has no zf.digest/0 that tells what was written")
        if not ids:
            return []
        array, out = (C.c_uint32 * len(ids))(*ids), (C.c_uint8 * len(ids))()
        self.call(ext.written, flags, array, len(ids), out, doing="written")
        return [i for i, is_written in zip(ids, bytes(out)) if is_written]

    def adopt(self, ids):
        """Takes over what others wrote of these parameters, and closes all windows: by element in exact and after flush(), in
        open windows the whole parameter. StateError where nothing is kept to tell it by (zf/ext/draft/digest.h)."""
        ids, ext = list(ids), self.lib.extension(_abi.EXT_DIGEST, _abi.DigestExt)
        if ext is None or not ext.adopt:
            raise errors.StateError("this plugin has no zf.digest/0 that adopts what was written")
        self.call(ext.adopt, (C.c_uint32 * max(1, len(ids)))(*ids), len(ids), doing="adopt")

    def digests(self, arrays):
        """64-bit digests of the contents of tensors, one int each: equal contents have equal ones, and one changed element
        always changes it. To notice writes that nobody told; to be compared within this process. On any thread, also while
        another one is in step()."""
        function = self.digest_function
        if function is None:
            raise errors.UnsupportedFieldError("this plugin has no zf.digest/0")
        if self.is_closed:
            raise errors.StateError("digests: this instance was closed")
        views = [tensors.view(array, f"tensor {i}") for i, array in enumerate(arrays)]
        addresses = (C.c_void_p * len(views))(*[view.address for view in views])
        out, record = (C.c_uint64 * len(views))(), errors.new_record()
        status = function(self.handle, addresses, len(views), out, C.byref(record))
        self.lib.check(status, record, "digests")
        return list(out)

    def config(self):
        """Effective values of every configuration key: {"section.key": text}."""
        ext = self.lib.extension(_abi.EXT_CONFIG, _abi.ConfigExt)
        values = {}
        for i, key in enumerate(self.lib.config_keys()):
            buffer = C.create_string_buffer(256)
            self.call(ext.value, i, buffer, len(buffer), doing="config value")
            values[f"{key['section']}.{key['key']}"] = buffer.value.decode()
        return values


def _fill_decl(out, param, view, name):
    out.struct_size = C.sizeof(_abi.ParamDecl)
    out.name, out.tensor, out.group = name, view.address, param.group
    out.flags = ((_abi.PARAM_FROZEN * param.frozen) | (_abi.PARAM_TIED * (param.tied_to is not None))
                 | (_abi.PARAM_NOT_IN_NORM * (not param.counts_in_norm)) | (_abi.PARAM_AVERAGE * param.average) | (_abi.PARAM_CARRIES * param.carries))
    out.tied_to = param.tied_to or 0
    out.home = {"plugin": _abi.HOME_PLUGIN, "resident": _abi.HOME_RESIDENT, "host": _abi.HOME_HOST}[param.home]
    out.reduce_group, out.reduce_group2 = param.reduce_group, param.reduce_group2
    if param.grad_dtype is not None:
        out.grad_dtype.code, out.grad_dtype.bits, out.grad_dtype.lanes = (*param.grad_dtype, 1)
    out.n_batch_axes = param.n_batch_axes
    out.channels = {"columns": _abi.CHANNELS_COLUMNS, "rows": _abi.CHANNELS_ROWS}[param.channels]


def _named(ids):
    """Items of ids, each an id or (id, first_batch, n_batches)."""
    ranges = [(item, 0, 0) if isinstance(item, int) else item for item in ids]
    return (_abi.ParamItem * max(1, len(ranges)))(*(
        _abi.ParamItem(struct_size=C.sizeof(_abi.ParamItem), id=number, first_batch=first, n_batches=n)
        for number, first, n in ranges))


def _destroy(destroy, handle, _kept):
    """Finalizer: host, library and callback are kept alive until the instance has ended."""
    with contextlib.suppress(Exception):  # a destructor never hides a first error behind a second one
        signals.call(destroy, handle, None)
