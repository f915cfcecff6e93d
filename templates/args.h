// The one argument block of every kernel, on every back end. Include-free: host, NVRTC and hipRTC
// read it.
#ifndef QT_ARGS_H
#define QT_ARGS_H

// An operand or result. High precision: `data`, with `ld` elements between rows of the stored
// matrix. MXFP4: `data` holds codes and `scales` the scale bytes; ld counts elements (codes),
// scale_ld scales.
struct qt_tensor {
  void* data;
  void* scales;
  long long ld;
  long long scale_ld;
  long long batch_stride;        // elements between batch entries; 0 when there is one
  long long scale_batch_stride;  // scales between batch entries
};

struct qt_args {
  long long m, n, k;       // this call's sizes; a static dimension repeats its constant
  long long batch;         // entries of D: the batch, or the groups of m_masked and k_grouped
  long long groups;        // 1 without grouping
  const int* group_sizes;  // [groups], in the kernel's memory: row ends, or counts in m_masked
  qt_tensor a, b, c, d;
  qt_tensor d2;      // second quantised copy (columns) of a quantised result
  qt_tensor z;       // the pre-activation of an epilogue that keeps it
  qt_tensor aux;     // what a derivative epilogue differentiates at
  const void* bias;  // [n] in the side type (d's, unless the problem says otherwise), or null
  const void* norm_weight;  // [k] in a's type: of an RMSNorm before `quantize`
  float epsilon;            // of that RMSNorm
  float* bias_gradient;     // column sums of A as it is stored, [batch, columns]
  float alpha, beta;
  unsigned long long noise_seed;  // stochastic rounding: Philox key
  unsigned long long sign_seed;   // signs per call: Philox key
  unsigned int sign_mask[8];      // fixed signs: bit j flips element j of a rotation segment
  unsigned int stream;   // Philox counter word chosen by the caller (layer, step, microbatch)
  unsigned int operand;  // Philox counter word: 0 for A, 1 for B
  const unsigned long long* noise_seed_at;  // where kernels read the seed; null: noise_seed
  const unsigned int* noise_stream_at;      // what they read and add to `stream`; null: nothing
  long long row0, k0, k_global;  // this call's place in a sharded operand; k_global 0 = k
  void* workspace;
  long long workspace_bytes;
};

#endif
