/* Whether views share memory, from their addresses, shapes and strides. */
#ifndef TIGON_BASE_OVERLAP_H
#define TIGON_BASE_OVERLAP_H

#include "base/check.h"

/* Whether two views (with elements) share a byte. Slices that interleave in one buffer, such as q, k and v of a fused
 * projection, share none. False also where a few steps do not decide it. */
bool tigon_overlap(const tigon_view *a, const tigon_view *b);

/* A dimension along which a view (with elements) meets itself: some two of its dimensions lead to the same element.
 * -1: none. */
int tigon_overlap_within(const tigon_view *view);

#endif
