/* SPDX-License-Identifier: Apache-2.0 */
/* exact_synced.h - which files a plugin has brought to the disk.
 *
 * Model: this program has functions of its own in the place of libc's fsync and fdatasync, which the plugin calls
 * too, and which note what they are called with. */
#pragma once

/* From here on it is noted. One save at a time is looked at. */
void zx_synced_begin(void);
/* NULL: every file of the directory was synced, and a directory was too; else the name of one that was not. Noting
 * ends. In memory of its own, until the next call. */
const char *zx_synced_missing(const char *dir_path);
