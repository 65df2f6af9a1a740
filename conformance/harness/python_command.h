/* SPDX-License-Identifier: Apache-2.0 */
/* harness/python_command.h - what zf-conform has Python do: the areas "glue" and "ablation" (conformance/accuracy).
 *
 * Python is ZF_PYTHON, else python3. It finds the packages in python/ beside this program, which is where they are
 * installed and where a build puts links to them; a wheel has them where its Python looks anyway. */
#pragma once

/* Areas: become Python with the arguments behind the area's name. Return, with exit status 2, only where there is no
 * Python; argv[0] is the area's name. */
int zc_accuracy_main(int argc, char **argv);
