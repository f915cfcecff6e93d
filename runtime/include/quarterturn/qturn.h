/* qturn.h: the C interface of Quarterturn, Hadamard-MXFP4 matrix products tuned for the machine at
 * hand.
 *
 * In short: create a context for a device; describe a problem with the range of its run-time
 * dimension; prepare it once (this may compile, load and read the tuning database); run it many
 * times (this never compiles, loads, allocates, locks, reads a file or synchronises).
 *
 *   A is [M, K], B is [N, K], D = alpha * A * B^T + beta * C + bias is [M, N] before an epilogue;
 * all row-major, K is contracted. Rotation and MX blocks (32 elements, one E8M0 scale) run along K.
 * Fprop Y = X W^T, Dgrad dX = dY W, Wgrad dW = dY^T X: see qturn_problem about transposed storage.
 *
 * Conventions
 * 1. Every function returns a qturn_status: QTURN_OK is 0; other numbers are stable and never
 * reused. qturn_last_error() gives the calling thread's last message: what was given, what is
 * allowed, what to do.
 * 2. Results come through the last argument, and are untouched when the status is not QTURN_OK.
 * 3. Every struct begins with struct_size. Initialise with the matching qturn_*_init, which fills
 * defaults; members added by later versions keep the old meaning at their default.
 * 4. Sizes are int64_t elements unless a name ends in _bytes. Enumerations are int32_t.
 * 5. Threads: a context and its plans and weights may be used by many threads at once, except that
 * a weight must not be refreshed or destroyed while a run uses it. Destroy plans and weights before
 *    their context (a context that still has some stays alive until the last of them is destroyed).
 * 6. Memory: the caller owns operands, results and workspace; the library owns its handles. On a
 * GPU, operand pointers are device pointers; on the CPU, host pointers. Pointers need the alignment
 * of their element type only, unless a plan states more.
 * 7. Processes: after fork, a child may use a CPU context that its parent made; it runs on the
 * calling thread alone and compiles nothing in the background. A fork waits until no thread uses
 * the database (2 s at most; past that the child has none). Fork while no other thread, that of
 * misses included, prepares: a child may wait for ever for its locks. A GPU is lost to a child, by
 * its driver's rule: there, calls that reach the device end in an error status, and handles may
 * still be destroyed. Start processes that use a GPU by exec (Python's "spawn"). At exit nothing
 * need be destroyed: no destructor of a static object calls a driver, and vendor libraries (those
 * that the process has loaded already, such as PyTorch's own, else the system's) stay loaded.
 * 8. The library never writes to stdout or stderr, aborts, throws across this interface, or changes
 *    process-wide state (fork handlers of 7 apart). What it has to say goes to the log callback.
 */
#ifndef QTURN_H
#define QTURN_H

#include <stddef.h>
#include <stdint.h>

#if defined(__GNUC__)
#define QTURN_API __attribute__((visibility("default")))
#else
#define QTURN_API
#endif

#define QTURN_VERSION_MAJOR 0
#define QTURN_VERSION_MINOR 1
#define QTURN_VERSION_PATCH 0

#ifdef __cplusplus
extern "C" {
#endif

typedef struct qturn_context qturn_context; /* device, libraries, database layers; thread-safe */
typedef struct qturn_plan qturn_plan;       /* one prepared problem: immutable, shareable */
typedef struct qturn_weight qturn_weight;   /* a prepared weight: packed once, run often */
typedef int32_t qturn_status;

/* ---- status codes: 1xx argument, 2xx machine, 3xx compilation, 4xx files and databases ---- */
enum {
  QTURN_OK = 0,
  QTURN_INVALID_ARGUMENT = 100,
  QTURN_INVALID_PROBLEM = 101,
  QTURN_NOT_SUPPORTED = 102,
  QTURN_OUT_OF_RANGE = 103,
  QTURN_WRONG_OPERAND = 104,
  QTURN_WORKSPACE_TOO_SMALL = 105,
  QTURN_MISALIGNED = 106,
  QTURN_UNKNOWN_NAME = 107,
  QTURN_NO_DEVICE = 200,
  QTURN_NO_DRIVER = 201,
  QTURN_NO_COMPILER = 202,
  QTURN_OUT_OF_MEMORY = 203,
  QTURN_BUSY = 204,
  QTURN_CAPTURING = 205,
  QTURN_INTERRUPTED = 206,
  QTURN_LAUNCH_FAILED = 207,
  QTURN_COMPILE_FAILED = 300,
  QTURN_COMPILE_TIMEOUT = 301,
  QTURN_REJECTED = 302,
  QTURN_QUARANTINED = 303,
  QTURN_UNPROVEN = 304, /* nothing shows that its kernels compute rightly on such a device */
  QTURN_MISS = 400,
  QTURN_NOT_OURS = 401,
  QTURN_NEWER_VERSION = 402,
  QTURN_DAMAGED = 403,
  QTURN_IO_ERROR = 404,
  QTURN_READ_ONLY = 405,
  QTURN_DISK_FULL = 406,
  QTURN_NETWORK_FILESYSTEM = 407,
  QTURN_NOT_LOCKED = 408,
  QTURN_INTERNAL = 900
};

/* ---- the vocabulary of a problem ---- */
enum {
  QTURN_OP_QUANTIZE = 0,      /* X [m, k] high precision -> MXFP4 codes and scales */
  QTURN_OP_GEMM = 1,          /* A MXFP4 or high precision (weight-only), B MXFP4 */
  QTURN_OP_HADAMARD_GEMM = 2, /* operands in high precision; B may be a prepared weight (MXFP4) */
  QTURN_OP_GEMM_QUANTIZE = 3, /* a GEMM whose result is rotated, rounded and packed */
  QTURN_OP_DEQUANTIZE = 4,    /* MXFP4 -> high precision: code value times 2^(scale byte - 127) */
  QTURN_OP_HADAMARD = 5,      /* the rotation alone */
  QTURN_OP_PACK = 6,          /* MXFP4 codes and scales from one layout to another */
  QTURN_OP_COLUMN_SUMS = 7    /* X [m, k] -> f32 [1, k], a fixed order of additions */
};
enum { QTURN_ROLE_NONE = 0, QTURN_FPROP = 1, QTURN_DGRAD = 2, QTURN_WGRAD = 3 };
enum { QTURN_TYPE_NONE = 0, QTURN_BF16 = 1, QTURN_F16 = 2, QTURN_F32 = 3, QTURN_MXFP4 = 4 };
enum {
  QTURN_LAYOUT_CHOSEN = 0, /* prepare picks the layout: ask qturn_plan_operand */
  QTURN_LAYOUT_PLAIN = 1,  /* codes [rows, K/2], low nibble = even element; scales [rows, K/32] */
  QTURN_LAYOUT_128X4 = 2,
  QTURN_LAYOUT_AITER = 3,
  QTURN_LAYOUT_E5M2 = 4,
  QTURN_LAYOUT_INT8_ROWS = 5,
  QTURN_LAYOUT_INT8_BLOCKS = 6,
  QTURN_LAYOUT_PANEL16 = 7,
  QTURN_LAYOUT_PERMUTED = 8,
  QTURN_LAYOUT_BF16 = 9,        /* one bf16 an element, an eighth of its value; no scales */
  QTURN_LAYOUT_AITER_16X16 = 10 /* aiter's scales, codes in its 16 x 16 shuffle (gfx950 weights) */
};
enum { QTURN_MAJOR_K = 0, QTURN_MAJOR_ROWS = 1 };
enum {
  QTURN_SCALE_FLOOR = 0, /* OCP MX 1.0: 2^(floor(log2 amax) - 2); clips */
  QTURN_SCALE_EVEN = 1,
  QTURN_SCALE_RCEIL = 2, /* default: the least power of two with amax / scale <= 6; never clips */
  QTURN_SCALE_CEIL = 3,
  QTURN_SCALE_TS34 = 4,
  QTURN_SCALE_QUEST = 5,
  QTURN_SCALE_QUEST_QUTLASS = 6,
  QTURN_SCALE_SEARCH = 7
};
enum { QTURN_SCALE_1X32 = 0, QTURN_SCALE_32X32 = 1 };
enum {
  QTURN_RNE = 0,  /* to nearest, ties to the even code */
  QTURN_SR16 = 1, /* stochastic, 16 random bits an element */
  QTURN_SR22 = 2,
  QTURN_SR8 = 3,
  QTURN_HALF_AWAY = 4,
  QTURN_HALF_TO_ZERO = 5,
  /* Stochastic by the hardware's own instruction: cvt.rs (sm_100a, sm_103a: 8 bits an element) and
   * v_cvt_scalef32_sr_pk_fp4_f32 (gfx950: 22 bits, one draw for two neighbours). Refused elsewhere
   * (QTURN_NOT_SUPPORTED), and until the device's instruction was proved to do what the documents
   * say (QTURN_UNPROVEN, QTURN_QUARANTINED): SR16 runs everywhere. */
  QTURN_SR_CVT_RS = 6,
  QTURN_SR_CVT_SCALEF32 = 7
};
enum { QTURN_SIGNS_NONE = 0, QTURN_SIGNS_FIXED = 1, QTURN_SIGNS_PER_CALL = 2 };
enum { QTURN_COPIES_ROWS = 0, QTURN_COPIES_COLUMNS = 1, QTURN_COPIES_BOTH = 2 };
/* Of z = alpha A B^T + beta C + bias, [m, n]. GELU and SwiGLU give D = act(z): [m, n], and of
 * SwiGLU [m, n / 2] from gates in the columns' first half or even ones and values in the rest.
 * Derivatives give D = z * act'(aux): aux and D are [m, n], and of SwiGLU [m, 2 n] in that same
 * order. */
enum {
  QTURN_EPILOGUE_NONE = 0,
  QTURN_EPILOGUE_GELU = 1,
  QTURN_EPILOGUE_GELU_TANH = 2,
  QTURN_EPILOGUE_SWIGLU_SPLIT = 3,
  QTURN_EPILOGUE_SWIGLU_INTERLEAVED = 4,
  QTURN_EPILOGUE_DGELU = 5,
  QTURN_EPILOGUE_DGELU_TANH = 6,
  QTURN_EPILOGUE_DSWIGLU = 7, /* of the split form */
  QTURN_EPILOGUE_DSWIGLU_INTERLEAVED = 8
};
enum { QTURN_PRE_ACTIVATION_DROPPED = 0, QTURN_PRE_ACTIVATION_KEPT = 1 /* args.z = z */ };
/* f32 sums over the tokens of dY as it is stored: of quantize's X [m, k], its columns' sums [k]; of
 * hadamard_gemm in role wgrad with a_major = rows, those of A's rows [m]. */
enum { QTURN_BIAS_GRADIENT_NONE = 0, QTURN_BIAS_GRADIENT_F32 = 1 };
/* What quantize applies before it rotates: x * (1 / sqrt(mean(x^2) + epsilon)) * weight along a
 * row, or silu(gate) * value of X [m, 2 k]; in binary32, rounded only by the quantiser. */
enum {
  QTURN_PROLOGUE_NONE = 0,
  QTURN_PROLOGUE_RMSNORM = 1,
  QTURN_PROLOGUE_SWIGLU_SPLIT = 2,
  QTURN_PROLOGUE_SWIGLU_INTERLEAVED = 3
};
enum { QTURN_BIAS_NONE = 0, QTURN_BIAS_PER_COLUMN = 1 };
enum { QTURN_OVERWRITE = 0, QTURN_ACCUMULATE = 1 };
enum { QTURN_GROUPING_NONE = 0, QTURN_M_CONTIGUOUS = 1, QTURN_M_MASKED = 2, QTURN_K_GROUPED = 3 };
enum { QTURN_EXACT = 0, QTURN_FAST = 1 };
enum { QTURN_SPREAD_ANY = 0, QTURN_SPREAD_NARROW = 1 };
enum { QTURN_REPRO_ANY = 0, QTURN_RUN_TO_RUN = 1, QTURN_BATCH_INVARIANT = 2 };
enum { QTURN_BIASED_REFUSED = 0, QTURN_BIASED_ALLOWED = 1 };

/* A dimension is static (lo == hi: a constant of the kernel) or run-time (any value from lo to hi).
 * Tokens are run-time whichever axis they are: m in Fprop and Dgrad, k in Wgrad. */
typedef struct qturn_extent {
  int64_t lo, hi;
} qturn_extent;

/* Grouping (a mixture of experts). The sizes of groups are read on the device when the work runs,
 * so one captured graph serves any routing of tokens. batch is 1.
 * 1. QTURN_M_CONTIGUOUS: A [m, K] and D [m, N] hold groups of rows behind each other; group g is
 *    rows group_ends[g - 1] (0 for the first) to group_ends[g], and B is [groups, N, K]. Rows of D
 *    from the last end on stay as they are.
 * 2. QTURN_M_MASKED: A [groups, m, K], B [groups, N, K], D [groups, m, N]; group g uses its first
 *    group_counts[g] rows, and D's other rows stay as they are.
 * 3. QTURN_K_GROUPED, the gradient of experts' weights: A [m, k], B [n, k] with tokens along k, in
 *    high precision stored as [k, m] and [k, n] (QTURN_MAJOR_ROWS); D is [groups, m, n], and group
 *    g contracts tokens group_ends[g - 1] to group_ends[g]. Without tokens it gives beta * C.
 *
 * A bias is [groups, n]. Ends must not decrease and must lie in 0..m (0..k), counts in 0..m. The
 * CPU refuses a call otherwise; kernels on a GPU clamp them, so that nothing is read or written out
 * of bounds, and what they compute is then unspecified.
 *
 * In quantised copies of k_grouped operands every group starts at a multiple of u = max(128,
 * rotation), at u * (group_ends[g - 1] / u + g); rows are u * (k / u + groups) long, and zero
 * blocks lie between groups. Noise is drawn for places in that copy, whose K is its row's length:
 * k0 and k_global must be 0. QTURN_OP_QUANTIZE with QTURN_K_GROUPED divides the rows of X, and
 * writes such a column copy. */
typedef struct qturn_problem {
  uint32_t struct_size;
  int32_t op, role;
  qturn_extent m, n, k; /* one-operand ops: X is [m, k] and n is 0 */
  qturn_extent batch;
  int32_t grouping;
  qturn_extent groups;
  int32_t a_type, b_type, d_type;
  int32_t c_type; /* of c, bias, aux and a kept z; NONE: d's type, or f32 where d is MXFP4 */
  int32_t a_major,
      b_major; /* QTURN_MAJOR_ROWS: stored as the transpose [k, rows] (Dgrad's W, Wgrad's both) */
  int32_t a_layout, b_layout, d_layout;
  int32_t copies;
  int32_t rotation; /* 0, 16, 32, 64, 128, 256 */
  int32_t signs;
  int32_t scale_rule, scale_block;
  int32_t a_rounding, b_rounding, d_rounding; /* d_rounding: of gemm_quantize's result */
  int32_t biased;
  int32_t epilogue, pre_activation, bias, bias_gradient, prologue, accumulate;
  int32_t contract, spread, reproducibility;
} qturn_problem;

/* An operand or a result, with what its numbers mean. For MXFP4, `data` holds codes and `scales`
 * the E8M0 bytes, where the layout keeps them apart. A plan refuses an MXFP4 operand whose meaning
 * differs from the one it was prepared for (QTURN_WRONG_OPERAND), so fill it by qturn_plan_operand,
 * then set pointers. Signs are stated on every operand that a call rotates or has had rotated, also
 * in high precision; the two operands of one product must carry the same. Layouts other than plain
 * are tightly packed and their codes and scales begin at a multiple of 64 bytes. The stored matrix
 * of MXFP4 in plain layout has ld >= k rounded up to 32 and to the rotation. */
typedef struct qturn_operand {
  uint32_t struct_size;
  int32_t type;
  int32_t layout, rotation, signs, scale_rule, scale_block, rounding;
  void* data;
  void* scales;
  int64_t ld;       /* elements between rows of the stored matrix; 0 = tightly packed */
  int64_t scale_ld; /* scales between rows; 0 = tightly packed */
  int64_t batch_stride, scale_batch_stride; /* elements between batch entries; 0 = tightly packed */
  uint64_t sign_seed; /* signs per call: the caller's seed, the same for both operands */
  uint32_t
      sign_mask[8]; /* fixed signs: bit j of the mask flips element j of every rotation segment */
  uint64_t noise_seed;   /* stochastic rounding of a weight, in qturn_weight_create and _refresh */
  uint32_t noise_stream; /* only; a run takes both from its qturn_args */
  size_t data_bytes, scales_bytes; /* filled by qturn_plan_operand: the most the range needs */
} qturn_operand;

typedef struct qturn_args {
  uint32_t struct_size;
  /* This call's sizes. 0 in a static dimension = its constant, and in batch and groups = the least
   * of its range. n is ignored by ops of one operand. */
  int64_t m, n, k, batch;
  int64_t groups;
  /* [groups] each, in the memory that kernels read (device memory on a GPU), at multiples of 4
   * bytes. See qturn_problem's grouping. */
  const int32_t* group_ends; /* m_contiguous, k_grouped: one past each group's last row or token */
  const int32_t* group_counts; /* m_masked: rows of each group that are in use */
  qturn_operand a, b;
  const qturn_weight* weight; /* instead of b */
  qturn_operand d, d2;        /* d2: the column copy of a quantised result */
  qturn_operand z; /* [m, n] in c_type: the pre-activation of an epilogue that keeps it */
  /* [m, n] in the problem's c_type when it accumulates; may be d itself where both have one shape
   * and type */
  const void* c;
  int64_t ldc;
  const void* bias;        /* [n] in c_type when the problem has a bias; [groups, n] if grouped */
  const void* aux;         /* what a derivative epilogue differentiates at, in c_type */
  int64_t ldaux;           /* elements between its rows; 0 = tightly packed, as batch entries are */
  float* bias_gradient;    /* batch entries of as many sums as the stored A has columns */
  const void* norm_weight; /* [k] in a's type: of a rmsnorm prologue */
  float epsilon;           /* of that; 1e-5 by qturn_args_init */
  float alpha, beta;       /* 1 and 0 by qturn_args_init; beta 0 does not read c */
  uint64_t noise_seed;     /* stochastic rounding: Philox4x32-7 key */
  uint32_t noise_stream;   /* a counter word of the caller's: from layer, step and microbatch */
  /* For captured graphs, whose noise has to change from replay to replay: in the memory that
   * kernels read (device memory on a GPU), at multiples of 8 and 4 bytes, read when the work runs.
   * The seed replaces noise_seed; the stream is added to noise_stream, modulo 2^32. NULL: not used.
   */
  const uint64_t* noise_seed_at;
  const uint32_t* noise_stream_at;
  /* quantize alone: 0 draws as operand A of a product does, 1 as B, 2 as gemm_quantize's result */
  uint32_t noise_operand;
  /* Where a shard lies in the whole operand, for the noise: the first row of A (or X) and of B, the
   * first element of K, and the whole K (0 = k). */
  int64_t row0, row0_b, k0, k_global;
  void* workspace;
  size_t workspace_bytes; /* at least qturn_plan_workspace */
  void* stream; /* CUstream or hipStream_t; ignored on the CPU, where run is synchronous */
} qturn_args;

/* ---- contexts ---- */
enum {
  QTURN_BACKEND_AUTO = 0,
  QTURN_BACKEND_CPU = 1,
  QTURN_BACKEND_CUDA = 2,
  QTURN_BACKEND_HIP = 3
};
/* What prepare does for a problem that nobody tuned (QTURN_ON_MISS):
 * 1. heuristic: compiles the analytic default before it returns.
 * 2. background: the prebuilt kernel serves, and the default is compiled meanwhile by a thread of
 *    the context. A plan in use never changes: a later prepare of the same problem gets the
 *    compiled kernel, which may want a prepared weight in another layout. Where there is no
 *    prebuilt kernel (GPUs), or the code is stored already, as heuristic.
 * 3. error: QTURN_MISS.
 * In each, the problem is noted for `qturn tune --from-misses`. */
enum { QTURN_MISS_HEURISTIC = 0, QTURN_MISS_BACKGROUND = 1, QTURN_MISS_ERROR = 2 };
enum { QTURN_JIT_ON = 0, QTURN_JIT_OFF = 1 };
enum { QTURN_LOG_ERROR = 0, QTURN_LOG_WARNING = 1, QTURN_LOG_INFO = 2, QTURN_LOG_DEBUG = 3 };

typedef void (*qturn_log_fn)(void* user, int32_t level, const char* message);

typedef struct qturn_context_options {
  uint32_t struct_size;
  int32_t backend;
  int32_t device;      /* ordinal of that back end */
  int32_t threads;     /* CPU workers; 0 = as many as this process may use */
  int32_t miss_policy; /* what prepare does for a problem that nobody tuned */
  int32_t jit; /* QTURN_JIT_OFF: no compiler is started; stored code and prebuilt kernels serve */
  const char* database;         /* the local database's path; NULL = the documented default */
  const char* code_cache;       /* folder of compiled code; NULL = beside the database */
  const char* const* snapshots; /* read-only databases, consulted after the local one */
  size_t snapshot_count;
  /* A folder of `qturn bundle`: its answers serve after those of the snapshots, and its code before
   * compiling. With QTURN_JIT_OFF nothing else is opened, compiled or written, and a CPU takes the
   * best of the bundle's targets. NULL = none (QTURN_BUNDLE). */
  const char* bundle;
  /* A file of `qturn lock write`: prepare serves what it names, by the plan and the very kernel
   * text that it names, and answers QTURN_NOT_LOCKED to anything else; databases and the miss
   * policy do not matter then. NULL = none (QTURN_LOCK). */
  const char* lock;
  const char* worker; /* path of quarterturn-worker; NULL = beside the library */
  qturn_log_fn log;   /* may be called from any thread */
  void* log_user;
  int32_t log_level;
} qturn_context_options;

/* A problem as one line of text, and back: for lists of what to prepare when a program starts, and
 * for `qturn tune --problem`. `needed` gets the length with the final 0; a smaller capacity gets
 * what fits, always terminated. */
QTURN_API qturn_status qturn_problem_key(const qturn_problem* problem, char* text, size_t capacity,
                                         size_t* needed);
QTURN_API qturn_status qturn_problem_parse(const char* key, qturn_problem* out);

QTURN_API void qturn_context_options_init(qturn_context_options* options);
QTURN_API void qturn_problem_init(qturn_problem* problem);
QTURN_API void qturn_operand_init(qturn_operand* operand);
QTURN_API void qturn_args_init(qturn_args* args);

QTURN_API qturn_status qturn_context_create(const qturn_context_options* options,
                                            qturn_context** out);
QTURN_API void qturn_context_destroy(qturn_context* context);
/* ---- newer answers without a restart ---- */
enum {
  QTURN_RELOAD_KEEP = 0,   /* problems that this context prepared keep their answers */
  QTURN_RELOAD_REPLACE = 1 /* later prepares of these, too, answer from what was read */
};
typedef struct qturn_reload_report {
  uint32_t struct_size;
  int32_t changed;         /* 1 when the two hashes differ, else 0 */
  uint8_t hash_before[32]; /* what qturn_snapshot_hash gave before, and gives now */
  uint8_t hash_after[32];
  uint64_t answers_before, answers_after; /* stored answers that can serve this device */
  uint64_t problems_changed; /* stored before or now, and answered by another plan now */
  uint64_t prepared_changed; /* problems that were prepared here, and would get another plan now */
  uint64_t prepared_held;    /* those of them that keep theirs: 0 after QTURN_RELOAD_REPLACE */
  int64_t generation_before, generation_after; /* of the first published folder among the
                                                  snapshots; 0: there is none */
} qturn_reload_report;
/* Reads pins, database and snapshots again, of a published folder what is current in it now, and
 * puts a new dispatch table in place of the old one, at once for all threads.
 * 1. Plans, weights and captured graphs in use never change, whatever `flags` says.
 * 2. With QTURN_RELOAD_KEEP a problem (one key, as qturn_problem_key writes it) that this context
 *    prepared before gets the same plan in later prepares: weights packed for it fit, and layers of
 *    one shape run one kernel. That includes the default of a problem that nobody had tuned, but
 *    not the prebuilt kernel that serves while the default is compiled. Problems that were not
 *    prepared yet get their answers from what was read.
 * 3. With QTURN_RELOAD_REPLACE every later prepare answers from what was read. Where the plan is
 *    another one it may want weights in another layout: prepare, compare qturn_plan_operand, pack.
 * 4. What cannot be read, is damaged, is not signed by an allowed key or is older than what was
 *    read before by the same signer's count: the status and message say so, and everything stays
 *    as it was. A pins file or snapshot that was absent before and still is stays left out.
 * 5. A context with a lock file goes on by it alone.
 *
 * May take some 100 ms for 20,000 answers; compiles nothing. Any thread may call it, while others
 * prepare and run; runs do not wait for it, prepares may for its end. `report` may be NULL; else
 * set its struct_size. */
QTURN_API qturn_status qturn_reload(qturn_context* context, int32_t flags,
                                    qturn_reload_report* report);
/* SHA-256 over what prepare goes by: the sorted stored answers of all layers, or the lock file, the
 * class of device, the library's version and disabled families. Ranks whose hashes are equal
 * prepare the same plans, unless one of them has a plan in quarantine. */
QTURN_API qturn_status qturn_snapshot_hash(qturn_context* context, unsigned char hash[32]);

/* ---- plans ---- */
/* QTURN_OK when some kernel computes the problem here; else why not. Compiles nothing. */
QTURN_API qturn_status qturn_supports(qturn_context* context, const qturn_problem* problem);
/* May compile, load and read the database, so it comes before stream capture: while a blocking
 * stream of the current CUDA context is being captured it answers QTURN_CAPTURING; beside the
 * capture of a non-blocking stream it works. Neither breaks the capture. Code is loaded into the
 * calling thread's current context where that is of this device, else into the device's primary
 * context; another context loads it when it first runs the plan. */
QTURN_API qturn_status qturn_prepare(qturn_context* context, const qturn_problem* problem,
                                     qturn_plan** out);
/* qturn_prepare of `count` problems, with what they need compiled side by side on all cores first:
 * for a model's whole list when a program starts. plans[i] is NULL where statuses[i] (`statuses`
 * may be NULL) is not QTURN_OK; the first such status is returned, and its message says which
 * problem it was. The others are prepared all the same. */
QTURN_API qturn_status qturn_prepare_many(qturn_context* context,
                                          const qturn_problem* const* problems, size_t count,
                                          qturn_plan** plans, qturn_status* statuses);
QTURN_API void qturn_plan_destroy(qturn_plan* plan);
/* The workspace for any size inside the prepared range, in bytes. */
QTURN_API qturn_status qturn_plan_workspace(const qturn_plan* plan, size_t* bytes);

enum {
  QTURN_OPERAND_A = 0,
  QTURN_OPERAND_B = 1,
  QTURN_OPERAND_D = 2,
  QTURN_OPERAND_D2 = 3,
  QTURN_OPERAND_Z = 4
};
/* The meaning, layout and size of an operand that this plan takes or gives. */
QTURN_API qturn_status qturn_plan_operand(const qturn_plan* plan, int32_t which,
                                          qturn_operand* out);

/* Enqueues on args->stream (GPU) or computes before it returns (CPU). M = 0 or N = 0 succeeds and
 * does nothing; K = 0 gives beta * C. On a GPU it may be captured into a graph, and uses the
 * calling thread's current context where that is of the plan's device, else the device's primary
 * context: the stream must be of that context. */
QTURN_API qturn_status qturn_run(const qturn_plan* plan, const qturn_args* args);

/* How the stored answer matched, best first. */
enum {
  QTURN_MATCH_EXACT = 0,     /* tuned for this problem on this class of device */
  QTURN_MATCH_BUCKET = 1,    /* tuned for a range that contains this one */
  QTURN_MATCH_STALE = 2,     /* tuned here with another driver, compiler or library version */
  QTURN_MATCH_BORROWED = 3,  /* tuned on another class of device, or for a neighbouring range */
  QTURN_MATCH_HEURISTIC = 4, /* nobody tuned it: the analytic default, compiled */
  QTURN_MATCH_REFERENCE = 5  /* the prebuilt portable kernel */
};
QTURN_API qturn_status qturn_plan_match(const qturn_plan* plan, int32_t* match);
/* A description as JSON text: problem, match, plan, families that refused and why. Works before
 * prepare. `needed` gets the length with the final 0; a smaller capacity gets what fits, always
 * terminated. */
QTURN_API qturn_status qturn_explain(qturn_context* context, const qturn_problem* problem,
                                     char* text, size_t capacity, size_t* needed);

/* ---- prepared weights: B packed once for a call site, in the layout that its plan chose ---- */
QTURN_API qturn_status qturn_weight_bytes(const qturn_plan* plan, size_t* bytes);
/* `source` is W [n, k] (or its transpose, by the problem's b_major) in bf16, f16, f32, or plain
 * MXFP4. `storage` NULL: the library allocates (CPU). Any plan that wants the same layout and
 * meaning takes it. */
QTURN_API qturn_status qturn_weight_create(const qturn_plan* plan, const qturn_operand* source,
                                           void* storage, size_t storage_bytes, void* stream,
                                           qturn_weight** out);
/* Quantises new values into the same storage, after an optimiser step. */
QTURN_API qturn_status qturn_weight_refresh(qturn_weight* weight, const qturn_operand* source,
                                            void* stream);
QTURN_API qturn_status qturn_weight_operand(const qturn_weight* weight, qturn_operand* out);
/* A self-describing byte image; `written` gets its size even when `capacity` is too small. */
QTURN_API qturn_status qturn_weight_serialize(const qturn_weight* weight, void* bytes,
                                              size_t capacity, size_t* written);
QTURN_API qturn_status qturn_weight_deserialize(qturn_context* context, const void* bytes,
                                                size_t size, void* storage, size_t storage_bytes,
                                                qturn_weight** out);
QTURN_API void qturn_weight_destroy(qturn_weight* weight);

/* ---- what happened ---- */
typedef struct qturn_stats {
  uint32_t struct_size;
  uint64_t prepares, runs;
  uint64_t matched[6]; /* prepares by QTURN_MATCH_* */
  uint64_t failures;   /* prepares of valid problems that gave no plan */
  uint64_t compiles, code_hits, quarantined;
  /* Rows that windowed GPU plans of this context found outside their window and computed exactly,
   * in runs that have ended. */
  uint64_t window_fallbacks;
} qturn_stats;
/* Set struct_size first. Waits for the GPU; QTURN_CAPTURING while a blocking stream of the current
 * CUDA context is being captured. */
QTURN_API qturn_status qturn_get_stats(qturn_context* context, qturn_stats* out);

enum {
  QTURN_METRICS_WITHOUT_DEVICE = 0, /* never touches a device */
  QTURN_METRICS_WITH_DEVICE = 1     /* reads window fallbacks, too: waits for the GPU, as
                                       qturn_get_stats does, and fails as it does */
};
/* Counters of `count` contexts (at least one) as Prometheus text, exposition format 0.0.4, for a
 * server to put into the answer to GET /metrics. Names begin with qturn_, seconds are the unit of
 * time; each sample is labelled with backend and device, and where count > 1 with context, its
 * place in the list. Without a device's being asked qturn_window_fallback_rows_total is what
 * qturn_get_stats or this function last read. `needed` gets the length with the final 0; a smaller
 * capacity gets what fits, always terminated: numbers may have grown in length between two calls,
 * so ask again then. Never locks out a run. */
QTURN_API qturn_status qturn_metrics_text(qturn_context* const* contexts, size_t count,
                                          int32_t flags, char* text, size_t capacity,
                                          size_t* needed);

QTURN_API const char* qturn_status_name(qturn_status status); /* "wrong_operand"; never NULL */
QTURN_API const char* qturn_last_error(void); /* this thread's; "" when there was none */
QTURN_API const char* qturn_version_string(void);
/* major * 10000 + minor * 100 + patch of the library that is loaded; compare with the header's. */
QTURN_API int32_t qturn_version_number(void);

#ifdef __cplusplus
}
#endif

#endif
