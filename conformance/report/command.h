/* command.h - "zf-conform --report FILE.html": areas run one after the other, their results made into one page. */
#ifndef ZF_CONFORMANCE_REPORT_COMMAND_H
#define ZF_CONFORMANCE_REPORT_COMMAND_H

/* argv[0] is "--report". Exit status: that of the areas run (1 before 2 before 3), 0 where pages are only made. */
int zr_report_main(int argc, char **argv);

#endif
