/* The whole plan on one thread. */
#include "moe/plan.h"

void tigon_moe_plan_build(const tigon_moe_routing *routing, int64_t align, tigon_moe_plan *plan) {
  for (int64_t e = 0; e < routing->experts; e++) plan->count[e] = 0;
  tigon_moe_plan_count(routing, 0, routing->tokens, plan->count);
  plan->rows = tigon_moe_plan_segments(plan->count, routing->experts, align, plan->begin);
  for (int64_t e = 0; e < routing->experts; e++) plan->next[e] = plan->begin[e];
  tigon_moe_plan_place(routing, 0, routing->tokens, plan->next, plan);
  for (int64_t e = 0; e < routing->experts; e++) tigon_moe_plan_pad(e, align, plan);
}

int64_t tigon_moe_plan_end(const tigon_moe_routing *routing, int64_t limit, int64_t *needed) {
  int64_t end = routing->tokens * routing->choices;
  *needed = 0;
  for (int64_t t = 0; t < routing->tokens; t++)
    for (int64_t j = 0; j < routing->choices; j++) {
      const int64_t id = tigon_moe_id(routing, t, j);
      if (id < 0 || id >= routing->experts) continue;
      if ((*needed)++ == limit) end = t * routing->choices + j;
    }
  return end;
}

int64_t tigon_moe_plan_first_bad(const tigon_moe_routing *routing) {
  for (int64_t t = 0; t < routing->tokens; t++)
    for (int64_t j = 0; j < routing->choices; j++)
      if (tigon_moe_id(routing, t, j) >= routing->experts) return t * routing->choices + j;
  return -1;
}
