/* Receipts: JSON Lines, first an object about the environment, then one a measurement. bench/results/README.md
 * names their members. The file appears under its name only when it is complete. */
#ifndef APPS_BENCH_RECEIPT_H
#define APPS_BENCH_RECEIPT_H

#include "bench_case.h"
#include "failure.h"

/* Refuses a path that could not be written at the end. NULL with *failed. */
bench_receipt *bench_receipt_open(const char *path, failure *failed);
/* NULL receipt is allowed in these: nothing happens. */
void bench_receipt_add(bench_receipt *receipt, const bench_case *c, const bench_pass *pass, const char *provider,
                       const char *version, const bench_figures *figures);
/* Writes the file and frees the receipt. */
bool bench_receipt_close(bench_receipt *receipt, const bench *b, failure *failed);
/* Frees it without a file. */
void bench_receipt_drop(bench_receipt *receipt);

#endif
