// What a CPU GEMM does with its sums: scale, add C and bias, apply the epilogue, round to D's type,
// store.
#ifndef QT_CPU_EPILOGUE_H
#define QT_CPU_EPILOGUE_H

#include "args.h"
#include "cpu/elements.h"
#include "cpu/layouts.h"
#include "cpu/primitives_portable.h"
#include "mxfp4/activation.h"

namespace qt {
namespace cpu {

/// z = (alpha * descale) * sums + beta * C + bias of 16 columns, of which `count` exist, each
/// operation rounded on its own in binary32. With beta = 0, C is not read.
template <class Config>
QT_FN void pre_activation(const Config& config, const qt_args* args, i64 batch, i64 row, i64 column,
                          int count, const float* sums, float (&z)[16]) {
  const float factor = mul(args->alpha, config.descale);
  for (int c = 0; c < 16; ++c) z[c] = mul(factor, sums[c]);
  if (config.accumulate && args->beta != 0.0f) {
    const i64 at = batch * args->c.batch_stride + row * args->c.ld + column;
    for (int c = 0; c < count; ++c)
      z[c] = z[c] + mul(args->beta, load_element(args->c.data, at + c, config.side_type));
  }
  if (config.bias)
    for (int c = 0; c < count; ++c)
      z[c] = z[c] + load_element(args->bias, column + c, config.side_type);
}

QT_FN i64 place(const qt_tensor& t, i64 batch, i64 row, i64 column) {
  return batch * t.batch_stride + row * t.ld + column;
}

/// The first `count` of 16 values.
QT_FN void store_values(const qt_tensor& to, DType type, i64 at, int count, const float* values) {
  if (count == 16) {
    for (int c = 0; c < 16; ++c) store_element(to.data, at + c, type, values[c]);
  } else {
    for (int c = 0; c < count; ++c) store_element(to.data, at + c, type, values[c]);
  }
}

/// 16 values at once, so that compilers see vectors.
template <Epilogue epilogue>
QT_CPU_NOINLINE void activate(const float (&z)[16], const float (&aux)[16], float (&out)[16]) {
  for (int c = 0; c < 16; ++c) out[c] = activated<epilogue>(z[c], aux[c]);
}
QT_CPU_NOINLINE void activate_pairs(const float (&gates)[16], const float (&values)[16],
                                    float (&out)[16]) {
  for (int c = 0; c < 16; ++c) out[c] = swiglu(gates[c], values[c]);
}
QT_CPU_NOINLINE void differentiate_pairs(const float (&z)[16], const float (&gates)[16],
                                         const float (&values)[16], float (&gate_gradients)[16],
                                         float (&value_gradients)[16]) {
  for (int c = 0; c < 16; ++c) {
    const GateGradient d = swiglu_gradient(z[c], gates[c], values[c]);
    gate_gradients[c] = d.gate;
    value_gradients[c] = d.value;
  }
}

/// Gates and values of z's columns from `column` on, as far as they exist: in aux and D of a SwiGLU
/// derivative, element `step` * c from each of these places on.
struct PairPlaces {
  i64 gate, value;
  int step;
};
QT_FN PairPlaces pair_places(const qt_tensor& t, Epilogue epilogue, i64 batch, i64 row, i64 column,
                             i64 n) {
  if (epilogue == Epilogue::dswiglu)
    return {place(t, batch, row, column), place(t, batch, row, n + column), 1};
  return {place(t, batch, row, 2 * column), place(t, batch, row, 2 * column) + 1, 2};
}

template <class Config>
QT_FN void store_pair_gradients(const Config& config, const qt_args* args, i64 batch, i64 row,
                                i64 column, i64 n, int count, const float (&z)[16]) {
  float gates[16] = {}, values[16] = {}, gate_gradients[16], value_gradients[16];
  const PairPlaces from = pair_places(args->aux, config.epilogue, batch, row, column, n);
  for (int c = 0; c < count; ++c) {
    gates[c] = load_element(args->aux.data, from.gate + from.step * c, config.side_type);
    values[c] = load_element(args->aux.data, from.value + from.step * c, config.side_type);
  }
  differentiate_pairs(z, gates, values, gate_gradients, value_gradients);
  const PairPlaces to = pair_places(args->d, config.epilogue, batch, row, column, n);
  for (int c = 0; c < count; ++c) {
    store_element(args->d.data, to.gate + to.step * c, config.d_type, gate_gradients[c]);
    store_element(args->d.data, to.value + to.step * c, config.d_type, value_gradients[c]);
  }
}

/// `count` of 16 pairs of z to D [m, n / 2].
template <class Config>
QT_FN void store_pairs(const Config& config, const qt_args* args, i64 batch, i64 row, i64 output,
                       int count, const float (&gates)[16], const float (&values)[16]) {
  float out[16];
  activate_pairs(gates, values, out);
  store_values(args->d, config.d_type, place(args->d, batch, row, output), count, out);
}

/// D of 16 columns of z [m, n], of which `count` exist. Not for the split SwiGLU, whose pairs meet
/// in store_waiting.
template <class Config>
QT_FN void store_results(const Config& config, const qt_args* args, i64 batch, i64 row, i64 column,
                         i64 n, int count, const float (&z)[16]) {
  if (config.keeps_z)
    store_values(args->z, config.side_type, place(args->z, batch, row, column), count, z);
  if (config.epilogue == Epilogue::swiglu_interleaved) {
    float gates[16] = {}, values[16] = {};
    for (int c = 0; c < 8; ++c) {
      gates[c] = z[2 * c];
      values[c] = z[2 * c + 1];
    }
    return store_pairs(config, args, batch, row, column / 2, count / 2, gates, values);
  }
  if (is_dswiglu(config.epilogue))
    return store_pair_gradients(config, args, batch, row, column, n, count, z);
  float out[16], aux[16] = {};
  if (is_derivative(config.epilogue)) {
    const i64 at = place(args->aux, batch, row, column);
    for (int c = 0; c < count; ++c) aux[c] = load_element(args->aux.data, at + c, config.side_type);
  }
  const i64 at = place(args->d, batch, row, column);
  switch (config.epilogue) {
    case Epilogue::gelu:
      activate<Epilogue::gelu>(z, aux, out);
      break;
    case Epilogue::gelu_tanh:
      activate<Epilogue::gelu_tanh>(z, aux, out);
      break;
    case Epilogue::dgelu:
      activate<Epilogue::dgelu>(z, aux, out);
      break;
    case Epilogue::dgelu_tanh:
      activate<Epilogue::dgelu_tanh>(z, aux, out);
      break;
    default:
      return store_values(args->d, config.d_type, at, count, z);
  }
  store_values(args->d, config.d_type, at, count, out);
}

/// Where z of a part's rows waits until both halves of a split SwiGLU are there.
struct WaitingPanels {
  float* z;  // [rows][panels][16]; null: nothing waits, results are stored
  i64 first;
  i64 panels;
  float* at(i64 row, i64 panel) const { return z + (row * panels + panel - first) * kPanelRows; }
};

/// Finished sums of a panel's 16 columns for row `row` of a part, row `row0 + row` of D.
template <class Config>
QT_FN void store_sums(const Config& config, const qt_args* args, i64 batch, i64 row0, i64 row,
                      i64 panel, i64 n, const WaitingPanels& waiting, const float* sums) {
  const i64 column = panel * kPanelRows;
  const int count = int(n - column < kPanelRows ? n - column : kPanelRows);
  float z[16];
  pre_activation(config, args, batch, row0 + row, column, count, sums, z);
  if (config.epilogue == Epilogue::swiglu_split)
    __builtin_memcpy(waiting.at(row, panel), z, sizeof z);
  else
    store_results(config, args, batch, row0 + row, column, n, count, z);
}

/// The pairs of 16 outputs from `output` on.
template <class Config>
QT_FN void store_waiting(const Config& config, const qt_args* args, i64 batch, i64 row, i64 output,
                         i64 n, const float* gate, const float* value) {
  const i64 half = n / 2;
  const int count = int(half - output < 16 ? half - output : 16);
  float gates[16] = {}, values[16] = {};
  for (int c = 0; c < count; ++c) {
    gates[c] = gate[c];
    values[c] = value[c];
  }
  if (config.keeps_z) {
    const i64 at = place(args->z, batch, row, output);
    store_values(args->z, config.side_type, at, count, gates);
    store_values(args->z, config.side_type, at + half, count, values);
  }
  store_pairs(config, args, batch, row, output, count, gates, values);
}

/// Panels of D that are cut into parts: of the split SwiGLU those of outputs, else of z.
template <class Config>
QT_FN i64 part_columns(const Config& config, i64 n) {
  return config.epilogue == Epilogue::swiglu_split ? n / 2 : n;
}

/// All panels of a part [panel, panel_end) by work.some_panels, `step` at a time; `work` has `rows`
/// rows, at most `most`.
template <int step, int most, class Config, class Work>
QT_FN void for_panels(const Config& config, Work& work, i64 n, i64 panel, i64 panel_end) {
  const auto several = [&](i64 first, i64 end) {
    for (i64 p = first; p < end; p += step)
      work.template some_panels<step>(end - p < step ? end - p : step, p);
  };
  if (config.epilogue != Epilogue::swiglu_split) return several(panel, panel_end);
  alignas(64) float gates[most][step * kPanelRows], values[most][(step + 1) * kPanelRows];
  const i64 half = n / 2;
  for (i64 first = panel; first < panel_end; first += step) {
    const i64 end = first + step < panel_end ? first + step : panel_end;
    const i64 outputs = end * kPanelRows < half ? end * kPanelRows : half;
    const i64 value = (half + first * kPanelRows) / kPanelRows;
    work.halves = {&gates[0][0], first, step};
    several(first, end);
    work.halves = {&values[0][0], value, step + 1};
    several(value, (half + outputs - 1) / kPanelRows + 1);
    for (i64 row = 0; row < work.rows; ++row)
      for (i64 p = first; p < end; ++p) {
        const i64 at = (p - first) * kPanelRows;
        store_waiting(config, work.args, work.batch, work.row0 + row, p * kPanelRows, n,
                      gates[row] + at, values[row] + half % kPanelRows + at);
      }
  }
}

}  // namespace cpu
}  // namespace qt

#endif
