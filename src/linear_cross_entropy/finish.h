/* From statistics of parts of a row to the outputs of its token. */
#ifndef TIGON_LINEAR_CROSS_ENTROPY_FINISH_H
#define TIGON_LINEAR_CROSS_ENTROPY_FINISH_H

#include "linear_cross_entropy/backend.h"

/* Each absent or (T), partial (T, 8). */
typedef struct tigon_lce_outputs {
  tigon_view loss, nll, lse, entropy, argmax, correct, partial;
} tigon_lce_outputs;

/* States of the parts of each row; distances in bytes. */
typedef struct tigon_lce_parts {
  const char *data;
  int64_t count, distance; /* of a row's parts */
  int64_t row_distance;
  bool by_token; /* a row for each of the T tokens; false: for each kept one */
} tigon_lce_parts;

/* Writes the kept tokens' rows of all outputs. The parts are merged in rising order and rounded to a state first, so
 * that outputs have the same bits whether the parts are merged at once or their merge has been stored in between. */
void tigon_lce_finish(const tigon_lce_loss *loss, const tigon_lce_outputs *outputs, const tigon_lce_parts *parts,
                      int threads);

/* Writes the rows of the tokens that take no part. */
void tigon_lce_leave_out(const tigon_lce_loss *loss, const tigon_lce_outputs *outputs);

#endif
