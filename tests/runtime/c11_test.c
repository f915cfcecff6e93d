/* The C interface from C11: everything a C program needs, in one file. Exits with 0 when all is
 * well. */
#include <quarterturn/qturn.h>
#include <stdio.h>
#include <stdlib.h>

#define REQUIRE(call)                                                                        \
  do {                                                                                       \
    const qturn_status status = (call);                                                      \
    if (status != QTURN_OK) {                                                                \
      fprintf(stderr, "%s: %s: %s\n", #call, qturn_status_name(status), qturn_last_error()); \
      return 1;                                                                              \
    }                                                                                        \
  } while (0)

enum { M = 4, N = 32, K = 64 };

int main(void) {
  qturn_context_options options;
  qturn_context_options_init(&options);
  options.backend = QTURN_BACKEND_CPU;
  qturn_context* context = NULL;
  REQUIRE(qturn_context_create(&options, &context));

  qturn_problem problem;
  qturn_problem_init(&problem);
  problem.op = QTURN_OP_HADAMARD_GEMM;
  problem.role = QTURN_FPROP;
  problem.m = (qturn_extent){0, 16};
  problem.n = (qturn_extent){N, N};
  problem.k = (qturn_extent){K, K};
  problem.a_type = problem.d_type = QTURN_F32;
  problem.b_type = QTURN_MXFP4;
  problem.rotation = 32;
  REQUIRE(qturn_supports(context, &problem));
  qturn_plan* plan = NULL;
  REQUIRE(qturn_prepare(context, &problem, &plan));

  static float x[M * K], w[N * K], y[M * N];
  for (int i = 0; i < M * K; ++i) x[i] = 1.0f;
  for (int i = 0; i < N * K; ++i) w[i] = 2.0f;
  qturn_operand source;
  qturn_operand_init(&source);
  source.type = QTURN_F32;
  source.data = w;
  qturn_weight* weight = NULL;
  REQUIRE(qturn_weight_create(plan, &source, NULL, 0, NULL, &weight));

  qturn_args args;
  qturn_args_init(&args);
  REQUIRE(qturn_plan_workspace(plan, &args.workspace_bytes));
  args.workspace = malloc(args.workspace_bytes);
  args.m = M;
  REQUIRE(qturn_plan_operand(plan, QTURN_OPERAND_A, &args.a));
  REQUIRE(qturn_plan_operand(plan, QTURN_OPERAND_D, &args.d));
  args.a.data = x;
  args.d.data = y;
  args.weight = weight;
  REQUIRE(qturn_run(plan, &args));

  /* Each block of 32 ones rotates to one sqrt(32) = 5.66, which rounds to 6; the twos likewise. */
  const float expected = 2.0f * 6.0f * 12.0f;
  for (int i = 0; i < M * N; ++i)
    if (y[i] != expected) {
      fprintf(stderr, "y[%d] = %g, expected %g\n", i, (double)y[i], (double)expected);
      return 1;
    }
  args.m = 17;
  if (qturn_run(plan, &args) != QTURN_OUT_OF_RANGE) return 1;
  free(args.workspace);
  qturn_weight_destroy(weight);
  qturn_plan_destroy(plan);
  qturn_context_destroy(context);
  puts("ok");
  return 0;
}
