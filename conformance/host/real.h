/* real.h - the type that the reference host computes in.
 *
 * It is float. The gradient test compiles the same sources with HOST_COMPUTE_IN_DOUBLE, which makes finite differences
 * exact enough to check every derivative; parameters and delivered gradients keep their own type either way. */
#ifndef ZF_CONFORMANCE_HOST_REAL_H
#define ZF_CONFORMANCE_HOST_REAL_H

#include <math.h>

#ifdef HOST_COMPUTE_IN_DOUBLE
typedef double host_real_t;
#define host_real_sqrt sqrt
#define host_real_tanh tanh
#else
typedef float host_real_t;
#define host_real_sqrt sqrtf
#define host_real_tanh tanhf
#endif

#endif
