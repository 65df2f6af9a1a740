/* plugin/fault.h - planted faults: a library built with -DZFI_FAULT_<NAME> trains wrongly in one known way, so that the
 * conformance suite can be seen catching it. In the shipped library every one is 0 and its branch folds away. */
#ifndef ZFI_FAULT_H
#define ZFI_FAULT_H

#ifndef ZFI_FAULT_RESET_MOMENTS_AT_RESELECT
#define ZFI_FAULT_RESET_MOMENTS_AT_RESELECT 0
#endif
#ifndef ZFI_FAULT_LEAVING_KEEPS_STALE
#define ZFI_FAULT_LEAVING_KEEPS_STALE 0
#endif
#ifndef ZFI_FAULT_ENTERING_MISSES_REPLAY
#define ZFI_FAULT_ENTERING_MISSES_REPLAY 0
#endif
#ifndef ZFI_FAULT_HOLE_COUNTED_IN_N
#define ZFI_FAULT_HOLE_COUNTED_IN_N 0
#endif
#ifndef ZFI_FAULT_SLOTS_SWAPPED
#define ZFI_FAULT_SLOTS_SWAPPED 0
#endif
#ifndef ZFI_FAULT_LAST_LR_FOR_ALL
#define ZFI_FAULT_LAST_LR_FOR_ALL 0
#endif
#ifndef ZFI_FAULT_SKIPPED_REPLAYED
#define ZFI_FAULT_SKIPPED_REPLAYED 0
#endif
#ifndef ZFI_FAULT_WRONG_BIAS_CORRECTION
#define ZFI_FAULT_WRONG_BIAS_CORRECTION 0
#endif
#ifndef ZFI_FAULT_DRAIN_FLUSHES
#define ZFI_FAULT_DRAIN_FLUSHES 0
#endif
#ifndef ZFI_FAULT_PUBLISH_LOST_ON_DRAIN
#define ZFI_FAULT_PUBLISH_LOST_ON_DRAIN 0
#endif
#ifndef ZFI_FAULT_PUBLISH_LOST_ON_SAVE
#define ZFI_FAULT_PUBLISH_LOST_ON_SAVE 0
#endif
#ifndef ZFI_FAULT_DEFERRED_DROPPED
#define ZFI_FAULT_DEFERRED_DROPPED 0
#endif
#ifndef ZFI_FAULT_STALE_BY_TEN
#define ZFI_FAULT_STALE_BY_TEN 0
#endif
#ifndef ZFI_FAULT_DEVICE_MOMENTS_UNROUNDED
#define ZFI_FAULT_DEVICE_MOMENTS_UNROUNDED 0
#endif

#endif
