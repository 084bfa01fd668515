/* The end of a run: validation loss beside the text's own n-gram models, as a table and in OUT/summary.json. */
#ifndef APPS_SUMMARY_H
#define APPS_SUMMARY_H

#include "checkpoint.h"

#define SUMMARY_NAME "summary.json"

bool summarise(model *m, const run_state *state, const text_data *data, const char *directory, failure *failed);

#endif
