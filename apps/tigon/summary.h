/* The end of a run: validation loss, of text beside its own n-gram models, as a table and in OUT/summary.json. */
#ifndef APPS_SUMMARY_H
#define APPS_SUMMARY_H

#include "checkpoint.h"

#define SUMMARY_NAME "summary.json"

/* Scores at most `limit` tokens, the first of the validation split. */
bool summarise(model *m, const run_state *state, dataset *data, int64_t limit, const char *directory, failure *failed);

#endif
