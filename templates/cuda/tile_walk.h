// Which tile of which product a block computes next: one numbering of all tiles of a call, whether
// its products are a batch or the groups of a mixture of experts, whose sizes are read here, in
// device memory. So grids are fixed before sizes are known, and a recorded graph follows them.
#ifndef QT_CUDA_TILE_WALK_H
#define QT_CUDA_TILE_WALK_H

#include "args.h"
#include "cuda/expand.h"
#include "groups.h"

namespace qt::cuda {

/// One product of a call: rows first..end of D's matrix `d`, from A's matrix `a` and B's `b`, over
/// elements k_first..k_first + k of their rows.
struct Product {
  u32 a, b, d;
  i64 first, end;
  i64 k_first, k;
};

/// How many products a call has.
template <Grouping grouping>
QT_FN u32 product_count(const qt_args& args) {
  return u32(grouping == Grouping::m_contiguous ? args.groups : args.batch);
}

/// Product `entry` of a call with m rows and k elements (tokens, where they are grouped); `unit` is
/// a group's in a copy quantised along tokens.
template <Grouping grouping>
QT_FN Product product_of(const qt_args& args, u32 entry, i64 m, i64 k, i64 unit) {
  if constexpr (grouping == Grouping::m_contiguous) {
    const GroupRange rows = group_range(args.group_sizes, entry, m);
    return {0, entry, 0, rows.first, rows.end, 0, k};
  } else if constexpr (grouping == Grouping::m_masked) {
    return {entry, entry, entry, 0, group_count(args.group_sizes, entry, m), 0, k};
  } else if constexpr (grouping == Grouping::k_grouped) {
    const GroupRange tokens = group_range(args.group_sizes, entry, k);
    return {0, 0, entry, 0, m, group_place(tokens, entry, unit).first, tokens.end - tokens.first};
  } else {
    return {entry, entry, entry, 0, m, 0, k};
  }
}

/// References of an expanded operand's matrix `entry`: rows have one for each group of tokens.
template <Grouping grouping>
QT_FN const u8* references_of(const qt_tensor& t, const Product& p, u32 entry) {
  const i64 at = grouping == Grouping::k_grouped ? p.d : entry;
  return static_cast<const u8*>(t.scales) + at * t.scale_batch_stride;
}

/// Where a product's bias begins: [n], of groups [groups, n].
template <Grouping grouping>
QT_FN i64 bias_place(const Product& p, i64 n) {
  return grouping == Grouping::none ? 0 : p.b * n;
}

/// Goes through items of all products of a call, numbered one product after the other.
template <class Config>
struct ProductWalk {
  static constexpr Grouping grouping = Config::grouping;
  /// Products that all have as many items.
  static constexpr bool even = grouping == Grouping::none || grouping == Grouping::k_grouped;
  const qt_args& args;
  i64 m, k;
  u32 products;
  u32 entry = 0, begin = 0, count = 0;  // items begin..begin + count are product `entry` - 1's
  Product product = {};

  QT_FN ProductWalk(const qt_args& call, i64 rows, i64 length)
      : args(call), m(rows), k(length), products(product_count<grouping>(call)) {}

  QT_FN void take(u32 number) {
    product = product_of<grouping>(args, number, m, k, Config::k_unit);
  }
  /// Moves to the product that has item `item`, numbers that never decrease; `items`(product): how
  /// many it has. False behind the last one.
  template <class Items>
  QT_FN bool find(u32 item, const Items& items) {
    if constexpr (even) {
      count = items(Product{0, 0, 0, 0, m, 0, k});
      if (count == 0 || item >= count * products) return false;
      entry = item / count;
      begin = entry * count;
      take(entry);
      return true;
    } else {
      while (item >= begin + count) {
        if (entry == products) return false;
        begin += count;
        take(entry++);
        count = items(product);
      }
      return true;
    }
  }
};

/// Tiles of D, `rows` high and `columns` wide, inside each product in groups of `raster` down M,
/// walked down first, so that neighbours in time share both operands in L2.
template <class Config, u32 rows>
struct TileWalk {
  ProductWalk<Config> products;
  u32 across;
  u32 y = 0, x = 0;  // the tile in its product

  QT_FN TileWalk(const qt_args& args, i64 m, i64 n, i64 k, i64 columns)
      : products(args, m, k), across(u32(ceil_div(n, columns))) {}

  QT_FN const Product& product() const { return products.product; }
  QT_FN static u32 down(const Product& p) { return u32(ceil_div(p.end - p.first, rows)); }
  /// Moves to tile `tile`; numbers never decrease. False behind the last one.
  QT_FN bool find(u32 tile) {
    if (!products.find(tile, [&](const Product& p) { return down(p) * across; })) return false;
    locate(tile - products.begin);
    return true;
  }
  /// The tile of a block of a grid with a block for each tile, or with `splits` neighbours for
  /// each, and products along z where all have as many.
  QT_FN bool find_of_block(u32 splits = 1) {
    if constexpr (!ProductWalk<Config>::even) return find(block_index() / splits);
    products.take(block_index_z());
    locate(block_index() / splits);
    return true;
  }
  /// The number of that tile among all of the call.
  QT_FN static u32 number_of_block(u32 splits) {
    const u32 in_product = block_index() / splits;
    if constexpr (!ProductWalk<Config>::even) return in_product;
    return block_index_z() * (block_count() / splits) + in_product;
  }

 private:
  QT_FN void locate(u32 rest) {
    constexpr u32 raster = Config::raster;
    const u32 stripe = rest / (raster * across);
    rest -= stripe * (raster * across);
    const u32 height = min_u32(down(product()) - stripe * raster, raster);
    x = rest / height;
    y = stripe * raster + rest - x * height;
  }
};

}  // namespace qt::cuda

#endif
