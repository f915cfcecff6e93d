// What a GEMM does with its finished sums: z = factor * sums + beta * C + bias, then the epilogue,
// rounded once to D's type and stored, for any stride and alignment of C, aux, z and D. One
// element, or one pair of a SwiGLU, at a time; epilogue_rows.h does rows of them.
#ifndef QT_CUDA_EPILOGUE_H
#define QT_CUDA_EPILOGUE_H

#include "args.h"
#include "cuda/activation_fast.h"
#include "cuda/load.h"
#include "mxfp4/activation.h"
#include "mxfp4/types.h"

namespace qt::cuda {

/// Two neighbours as D's 16-bit type.
template <DType type>
QT_FN u32 pack_pair(float low, float high) {
  if constexpr (type == DType::bf16) return pack_bf16(low, high);
  return pack_f16(low, high);
}

template <DType type>
QT_FN void store_element(void* base, i64 at, float v) {
  if constexpr (type == DType::f32) {
    static_cast<float*>(base)[at] = v;
  } else {
    static_cast<u16*>(base)[at] = u16(pack_pair<type>(v, 0.0f));
  }
}

QT_FN i64 place_of(const qt_tensor& t, i64 batch, i64 row, i64 column) {
  return batch * t.batch_stride + row * t.ld + column;
}

/// The part of z [m, n] that a call computes.
struct Destination {
  i64 batch;
  i64 m, n;
};

/// beta * C + bias for element (row, column), inside z.
template <class Config>
QT_FN float addend(const qt_args& args, const Destination& d, i64 row, i64 column, float bias) {
  float sum = bias;
  if constexpr (Config::accumulate)
    if (args.beta != 0.0f)
      sum =
          fma_rn(args.beta,
                 element<Config::side>(args.c.data, place_of(args.c, d.batch, row, column)), bias);
  return sum;
}

/// Columns of z that output `output` of a SwiGLU comes from.
template <Epilogue epilogue>
QT_FN i64 gate_column(i64 output) {
  return epilogue == Epilogue::swiglu_split ? output : 2 * output;
}
template <Epilogue epilogue>
QT_FN i64 value_column(i64 output, i64 n) {
  return epilogue == Epilogue::swiglu_split ? n / 2 + output : 2 * output + 1;
}

/// Tile rows of B whose products one thread gets as a SwiGLU's gate and value: of the `part`
/// columns that a warp computes the first half are gates from `first` on, the second their values.
/// Without pairs, rows in order.
template <class Config, u32 part>
struct PairedRows {
  static constexpr bool paired = is_gated(Config::epilogue);
  i64 first, n;
  QT_FN PairedRows(i64 column0, i64 all) : first(paired ? column0 / 2 : column0), n(all) {}
  /// The output of z that a pair's tile row belongs to.
  QT_FN i64 output(u32 row) const {
    return first + row / part * (part / 2) + row % part % (part / 2);
  }
  /// n where there is none.
  QT_FN i64 operator()(u32 row) const {
    if constexpr (!paired) return first + row;
    const i64 o = output(row);
    if (o >= n / 2) return n;
    return row % part < part / 2 ? gate_column<Config::epilogue>(o)
                                 : value_column<Config::epilogue>(o, n);
  }
};

/// Where results of a row go: into D in memory.
template <class Config>
struct IntoD {
  const qt_args& args;
  const Destination& d;
  i64 row;
  QT_FN void operator()(i64 column, float v) const {
    store_element<Config::output>(args.d.data, place_of(args.d, d.batch, row, column), v);
  }
};

/// Everything that becomes of z at (row, column), one element at a time, results by `put`(column of
/// D, value); not for SwiGLU.
template <class Config, class Put>
QT_FN void finish_element(const qt_args& args, const Destination& d, i64 row, i64 column, float z,
                          const Put& put) {
  if constexpr (Config::keeps_z)
    store_element<Config::side>(args.z.data, place_of(args.z, d.batch, row, column), z);
  if constexpr (is_dswiglu(Config::epilogue)) {
    constexpr bool split = Config::epilogue == Epilogue::dswiglu;
    const i64 gate = split ? column : 2 * column;
    const i64 value = split ? d.n + column : 2 * column + 1;
    const GateGradient g = gated_gradient<Config>(
        z, element<Config::side>(args.aux.data, place_of(args.aux, d.batch, row, gate)),
        element<Config::side>(args.aux.data, place_of(args.aux, d.batch, row, value)));
    put(gate, g.gate);
    put(value, g.value);
  } else {
    float aux = 0.0f;
    if constexpr (is_derivative(Config::epilogue))
      aux = element<Config::side>(args.aux.data, place_of(args.aux, d.batch, row, column));
    put(column, finished<Config>(z, aux));
  }
}
template <class Config>
QT_FN void finish_element(const qt_args& args, const Destination& d, i64 row, i64 column, float z) {
  finish_element<Config>(args, d, row, column, z, IntoD<Config>{args, d, row});
}

/// The same for a SwiGLU's output, from both of its columns of z.
template <class Config, class Put>
QT_FN void finish_pair(const qt_args& args, const Destination& d, i64 row, i64 output, float gate,
                       float value, const Put& put) {
  if constexpr (Config::keeps_z) {
    const i64 at = place_of(args.z, d.batch, row, 0);
    store_element<Config::side>(args.z.data, at + gate_column<Config::epilogue>(output), gate);
    store_element<Config::side>(args.z.data, at + value_column<Config::epilogue>(output, d.n),
                                value);
  }
  put(output, gated<Config>(gate, value));
}
template <class Config>
QT_FN void finish_pair(const qt_args& args, const Destination& d, i64 row, i64 output, float gate,
                       float value) {
  finish_pair<Config>(args, d, row, output, gate, value, IntoD<Config>{args, d, row});
}

}  // namespace qt::cuda

#endif
