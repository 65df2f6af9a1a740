/* SPDX-License-Identifier: Apache-2.0 */
/* tests/plugin/crash_disk.h - what a disk may hold when the machine stops in the middle of a save.
 *
 * Model. The calls that change a directory are recorded (the linker wraps them). After each of them the machine may
 * stop. What was synced is on the disk: fsync of a file makes its writes so, fsync of a directory what was done to its
 * names. Of the rest any part may be, in the order of the calls; a call of which an earlier one is lost that it needs
 * (a rename of what was never made) is no state. A file may have its first half alone. Up to ALL_OF calls that are not
 * synced, every subset is a state; of more, all but two of them at most, and two of them at most. */
#pragma once

/* Records from here on, in the directory and below it. */
void zt_crash_begin(const char *dir);
void zt_crash_end(void);

/* Makes each state in a new directory and calls look, once per state that differs. is_over: nothing is missing of what
 * was recorded but what was not synced. Returns the number of states. */
int zt_crash_each(const char *dir, void (*look)(const char *dir, int is_over));
/* [look] Makes the present state again. */
void zt_crash_make_again(void);
