# SPDX-License-Identifier: Apache-2.0
# Areas "glue", "curves" and "ablation" of zf-conform: accuracy parity through the reference host. Included by
# conformance/CMakeLists.txt. zf-host is run as a program, so it is built with zf-conform.
target_sources(zf-conform PRIVATE
    cases/ablation_judge.c
    cases/ablation_levels.c
    cases/ablation_main.c
    cases/ablation_report.c
    cases/glue_curves.c
    cases/glue_jobs.c
    cases/glue_judge.c
    cases/glue_main.c
    cases/glue_markers.c
    cases/glue_options.c
    cases/glue_probe.c
    cases/glue_report.c
    cases/glue_run.c)
target_link_libraries(zf-conform PRIVATE zf_glue zf_host zf_json m)
add_dependencies(zf-conform zf-host)
