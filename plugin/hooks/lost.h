/* SPDX-License-Identifier: Apache-2.0 */
/* plugin/hooks/lost.h - updates that are under way and end with the instance: a run that is destroyed without FLUSH. */
#pragma once

#include "instance/instance.h"

/* [control] Everything rests: warns of what the parameters do not show and will not, if that is anything. */
void zfi_lost_warn(const zf_instance_t *inst);
