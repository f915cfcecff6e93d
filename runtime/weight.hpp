// Weight: an operand B packed once for a call site, refreshed in place, and its byte image.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <string_view>

#include "runtime/context.hpp"
#include "runtime/include/quarterturn/qturn.h"

namespace quarterturn {

/// Its own memory or the caller's holds codes, then scales at the next multiple of 256 bytes. Not
/// refreshed while a run reads it.
class Weight {
 public:
  /// Bytes of storage for the weight that a plan takes. `not_supported` for plans whose B is not a
  /// static MXFP4 operand.
  static Result<std::int64_t> bytes_for(const PreparedPlan& plan);

  static Result<std::unique_ptr<Weight>> create(std::shared_ptr<Context> context,
                                                const PreparedPlan& plan,
                                                const qturn_operand& source, void* storage,
                                                std::size_t storage_bytes, void* stream);
  static Result<std::unique_ptr<Weight>> deserialize(std::shared_ptr<Context> context,
                                                     std::string_view image, void* storage,
                                                     std::size_t storage_bytes);
  ~Weight();
  Weight(const Weight&) = delete;
  Weight& operator=(const Weight&) = delete;

  /// Quantises or packs `source` into the storage. Its signs become the weight's.
  Status refresh(const qturn_operand& source, void* stream);

  const qturn_operand& operand() const { return operand_; }

  /// Whether the plan's B is this size; the operand's meaning is checked by the run itself.
  Status check_size(const Problem& problem) const;

  /// Magic, version, a JSON text that says what it is, codes, scales, SHA-256 of all before.
  std::size_t image_bytes() const;
  Status serialize(void* to) const;

 private:
  Weight(std::shared_ptr<Context> context, const Problem& problem);

  Status take_storage(void* storage, std::size_t storage_bytes);
  Problem packing_problem(DType source_type, Layout to) const;
  /// Runs one quantise or pack, with workspace of its own.
  Status fill(const Problem& step, const qturn_operand& source, const qturn_operand& to,
              void* stream) const;
  /// For devices that quantise into plain only: into memory of its own first, packed from there.
  Status fill_by_plain(const qturn_operand& source, void* stream) const;
  std::string header() const;

  std::shared_ptr<Context> context_;
  Problem problem_;  ///< a `gemm` whose B this is: n, k, batch, layout and meaning of B only
  OperandBytes bytes_;
  qturn_operand operand_{};
  void* owned_ = nullptr;
};

}  // namespace quarterturn
