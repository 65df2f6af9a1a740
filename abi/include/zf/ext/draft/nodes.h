/* SPDX-License-Identifier: Apache-2.0 */
/* zf/ext/draft/nodes.h - process groups that zf.collectives/1 of a host makes by itself, for [shard] transport =
 * ..._two_level: gradients are summed inside each machine first, then between machines.
 *
 * All ranks of group 0 ask for the first, then for the second, in bind_params (`group` of zf.collectives/1, which may
 * wait for the other ranks here). A host that does not know its machines fails there, and every rank is refused.
 * Draft: may change or go with any release. */
#ifndef ZF_EXT_DRAFT_NODES_H
#define ZF_EXT_DRAFT_NODES_H

#include "zf/ext/collectives.h"

#define ZF_GROUP_NODE 0xFFFFFF00u   /* those of group 0 on this process's machine */
#define ZF_GROUP_ACROSS 0xFFFFFF01u /* those of group 0 that have this process's place in their machine's group */

#endif
