// Simulated bodies of cuda/primitives_sm100.h: tensor memory of the blocks of a cluster, and the
// pipe that copies scales to it, multiplies and arrives, in order and in the background.
//
// Lanes, columns, descriptors and shapes are as PTX ISA 9.7.16 has them, and what it does not allow
// ends the launch. Products read shared and tensor memory when they land; sums are rounded once a
// step of 64.
#ifndef QT_CUDA_PRIMITIVES_SM100_H
#define QT_CUDA_PRIMITIVES_SM100_H

#include "simulated/cuda/mxf4.h"
#include "simulated/cuda/primitives_sm90.h"

namespace qt::cuda {

namespace simulated_tensor {

constexpr u32 kPipe = 8;
constexpr u32 kLanes = 128, kColumns = 512;

/// A block's. What nobody wrote is NaN, as sums and as scales.
struct Memory {
  u32 first = 0, columns = 0;  ///< allocated; 0 columns: not, or not any more
  bool was_allocated = false;
  u32 blocks = 0;  ///< of the instructions that the kernel uses
  std::vector<u32> word = std::vector<u32>(kLanes * kColumns, 0xffffffffu);

  Memory() = default;
  Memory(const Memory&) = delete;
  ~Memory() {
    if (!sim::machine().failed && columns > 0)
      sim::machine().fail("the block ends with %u columns of tensor memory allocated", columns);
  }
  u32& at(u32 lane, u32 column) {
    if (column < first || column >= first + columns || lane >= kLanes)
      sim::machine().fail("tensor memory: lane %u, column %u; allocated are %u columns from %u on",
                          lane, column, columns, first);
    return word[lane * kColumns + column];
  }
};

struct Memories {
  std::map<u32, Memory> of_rank;
};
QT_FN Memory& of(const sim::Block& block) {
  return sim::state<Memories>(sim::Scope::cluster).of_rank[block.rank];
}
QT_FN Memory& of_block() { return of(*sim::machine().current->block); }

QT_FN void same_blocks(Memory& memory, u32 blocks, const char* what) {
  if (memory.blocks == 0) memory.blocks = blocks;
  if (memory.blocks != blocks)
    sim::machine().fail("%s of %u blocks in a kernel of %u", what, blocks, memory.blocks);
}

/// The blocks that an instruction of `blocks` acts on, of which the even one issues.
QT_FN std::vector<const sim::Block*> acting(u32 blocks, const char* what) {
  std::vector<const sim::Block*> out;
  if (blocks == 2 && cluster_rank() % 2 != 0)
    sim::machine().fail("%s for a pair, issued by its odd block", what);
  for (u32 i = 0; i < blocks; ++i) {
    const sim::Block* block = sim::machine().peer(cluster_rank() + i);
    if (!block || block->threads_left == 0)
      sim::machine().fail("%s for a pair, whose other block has ended", what);
    same_blocks(of(*block), blocks, what);
    out.push_back(block);
  }
  return out;
}

struct Allocation {
  u32 to, columns;
};
/// Not from column 0 on, where there is room: kernels must not take that for granted.
template <u32 blocks>
void allocate(Allocation* const* lanes) {
  const u32 columns = lanes[0]->columns, to = lanes[0]->to;
  Memory& memory = of_block();
  same_blocks(memory, blocks, "tcgen05.alloc");
  if (columns < 32 || columns > kColumns || (columns & (columns - 1)) != 0)
    sim::machine().fail("tcgen05.alloc of %u columns", columns);
  if (memory.was_allocated) sim::machine().fail("tcgen05.alloc after the permit was given back");
  memory.was_allocated = true;
  memory.columns = columns;
  memory.first = kColumns - columns;
  std::memcpy(sim::shared(to, 4, 4), &memory.first, 4);
}
template <u32 blocks>
void release(Allocation* const* lanes) {
  Memory& memory = of_block();
  same_blocks(memory, blocks, "tcgen05.dealloc");
  if (lanes[0]->to != memory.first || lanes[0]->columns != memory.columns || memory.columns == 0)
    sim::machine().fail("tcgen05.dealloc of %u columns at %u, allocated are %u at %u",
                        lanes[0]->columns, lanes[0]->to, memory.columns, memory.first);
  memory.columns = 0;
}

struct Loads {
  sim::Groups groups;
  ~Loads() {
    if (!sim::machine().failed && !groups.idle())
      sim::machine().fail("the thread ends with tensor loads on their way");
  }
};

// ---- descriptors

QT_FN u32 start_of(u64 tile) { return u32(tile & 0x3fffu) << 4; }
QT_FN u32 stride_of(u64 tile) { return u32(tile >> 32 & 0x3fffu) << 4; }

QT_FN void check_tile(u64 tile, u32 swizzle, const char* what) {
  if ((tile >> 61) != swizzle || (tile >> 46 & 7u) != 1 || (tile >> 49 & 15u) != 0)
    sim::machine().fail("%s: descriptor %llx", what, tile);
}

/// 64 codes of `rows` rows, decoded to two blocks of 32: out[block][row][element].
QT_FN void read_codes(u64 tile, u32 rows, const sim::Block& block, float* out, u32 pitch) {
  check_tile(tile, 2, "tcgen05.mma");
  const u32 start = start_of(tile), stride = stride_of(tile);
  if (start % 1024 + 32 > 128 || start % 32 != 0)
    sim::machine().fail("tcgen05.mma: 64 of K at %u", start);
  for (u32 row = 0; row < rows; ++row) {
    const u32 at = start + row / 8 * stride + row % 8 * 128;
    for (u32 half = 0; half < 2; ++half) {
      const u8* bytes = sim::shared(sim::swizzled(at + half * 16, 128), 16, 16, &block);
      for (u32 i = 0; i < 32; ++i)
        out[half * pitch + row * 32 + i] =
            simulated_mxf4::e2m1_of(u32(bytes[i / 2]) >> (4 * (i % 2)));
    }
  }
}

/// The scale of row `row` for block `half` of a step; every quarter must hold the same.
QT_FN double scale_at(Memory& memory, u32 column, u32 row, u32 byte) {
  const u32 word = memory.at(row % 32, column + row / 32);
  for (u32 quarter = 1; quarter < 4; ++quarter)
    if (memory.at(quarter * 32 + row % 32, column + row / 32) != word)
      sim::machine().fail("scales of row %u differ between quarters of tensor memory", row);
  return simulated_mxf4::ue8m0_of(word, byte);
}

struct Product {
  u64 a, b;
  u32 d, shape, a_scales, b_scales, keep;
  std::vector<const sim::Block*> blocks;
  std::vector<Memory*> memories;

  void operator()() const {
    const u32 pair = u32(blocks.size()), n = (shape >> 17 & 63u) * 8u;
    const u32 a_byte = shape >> 29 & 3u, b_byte = shape >> 4 & 3u;
    const u32 wanted =
        b_byte << 4 | 1u << 7 | 1u << 10 | (n / 8) << 17 | 1u << 23 | pair << 27 | a_byte << 29;
    if (shape != wanted || a_byte % 2 != 0 || b_byte % 2 != 0 || n == 0 || n > 256 ||
        n % (8 * pair) != 0)
      sim::machine().fail("tcgen05.mma: instruction descriptor %x", shape);
    std::vector<float> right(2 * n * 32);
    for (u32 i = 0; i < pair; ++i)
      read_codes(b, n / pair, *blocks[i], right.data() + i * (n / pair) * 32, n * 32);
    for (u32 i = 0; i < pair; ++i) multiply(i, n, right, a_byte, b_byte);
  }

 private:
  void multiply(u32 index, u32 n, const std::vector<float>& right, u32 a_byte, u32 b_byte) const {
    Memory& memory = *memories[index];
    std::vector<float> left(2 * kLanes * 32);
    read_codes(a, kLanes, *blocks[index], left.data(), kLanes * 32);
    std::vector<double> sums(kLanes * n, 0.0);
    for (u32 half = 0; half < 2; ++half) {
      std::vector<double> part(kLanes * n, 0.0), columns(n);
      sim::machine().multiply(part.data(), left.data() + half * kLanes * 32,
                              right.data() + half * n * 32, kLanes, n, 32);
      for (u32 c = 0; c < n; ++c) columns[c] = scale_at(memory, b_scales, c, b_byte + half);
      for (u32 row = 0; row < kLanes; ++row) {
        const double by = scale_at(memory, a_scales, row, a_byte + half);
        for (u32 c = 0; c < n; ++c) sums[row * n + c] += part[row * n + c] * by * columns[c];
      }
    }
    for (u32 row = 0; row < kLanes; ++row)
      for (u32 c = 0; c < n; ++c) {
        u32& to = memory.at(row, d + c);
        const double before = keep != 0 ? double(float_of(to)) : 0.0;
        to = bits_of(float(before + sums[row * n + c]));
      }
  }
};

template <u32 rank>
void post_box_for(u32 to, const qt_tensor_map* map, u32 barrier, u32 blocks,
                  const i32 (&first)[5]) {
  simulated_copies::BoxCopy copy = {{}, {first[0], first[1], first[2], first[3], 0}, to};
  sim::require_aligned(map, 64, "tensor map");
  std::memcpy(static_cast<void*>(&copy.map), map, sizeof copy.map);
  if (copy.map.magic != sim::TensorMap::kMagic)
    sim::machine().fail("the tensor map is not encoded");
  if (copy.map.rank != rank)
    sim::machine().fail("a copy of %u dimensions by a map of %u", rank, copy.map.rank);
  if (to % 128 != 0) sim::machine().fail("tile at %u: no multiple of 128", to);
  const sim::Block* block = sim::machine().current->block;
  const sim::Block* counting = sim::machine().peer(block->rank / blocks * blocks);
  if (!counting || counting->threads_left == 0)
    sim::machine().fail("bytes for a barrier of a block that has ended");
  auto& b = simulated_barriers::find(barrier, *counting);
  sim::machine().post(sim::kAnyOrder, [copy, block, &b] {
    copy(*block);
    b.complete(copy.map.box_bytes());
  });
}

}  // namespace simulated_tensor

// ---- tensor memory

template <u32 blocks>
QT_FN void allocate_tensor_memory(u32 to, u32 columns) {
  simulated_tensor::Allocation mine = {to, columns};
  sim::collective("tcgen05.alloc", mine, [](simulated_tensor::Allocation* const* lanes) {
    simulated_tensor::allocate<blocks>(lanes);
  });
}
template <u32 blocks>
QT_FN void free_tensor_memory(u32 at, u32 columns) {
  simulated_tensor::Allocation mine = {at, columns};
  sim::collective("tcgen05.dealloc", mine, [](simulated_tensor::Allocation* const* lanes) {
    simulated_tensor::release<blocks>(lanes);
  });
}
QT_FN void tensor_fence_before() {}
QT_FN void tensor_fence_after() {}

QT_FN void load_tensor_16x32(u32 (&v)[16], u32 at) {
  struct Lane {
    u32 at, warp;
  } mine = {at, sim::machine().current->warp};
  sim::collective("tcgen05.ld", mine, [](Lane* const* lanes) {
    const u32 at = lanes[0]->at;
    for (u32 i = 1; i < 32; ++i)
      if (lanes[i]->at != at) sim::machine().fail("tcgen05.ld: lanes name different addresses");
    if ((at >> 16) / 32 != lanes[0]->warp % 4 || (at >> 16) % 16 != 0)
      sim::machine().fail("tcgen05.ld of lane %u by warp %u", at >> 16, lanes[0]->warp);
  });
  auto& memory = simulated_tensor::of_block();
  const u32 lane = lane_index(), row = (at >> 16) + lane / 4;
  const u32 column = (at & 0xffffu) + lane % 4 * 2;
  for (u32& word : v) word = 0xffffffffu;
  sim::state<simulated_tensor::Loads>(sim::Scope::thread).groups.add([&v, &memory, row, column] {
    for (u32 i = 0; i < 16; ++i) v[i] = memory.at(row + i % 4 / 2 * 8, column + i / 4 * 8 + i % 2);
  });
}
template <int n>
QT_FN void wait_for_tensor_loads(u32 (&)[n]) {
  sync_warp();
  sim::state<simulated_tensor::Loads>(sim::Scope::thread).groups.finish();
}

// ---- products

template <u32 blocks>
QT_FN void copy_scales(u32 to, u64 tile) {
  using namespace simulated_tensor;
  check_tile(tile, 0, "tcgen05.cp");
  for (const sim::Block* block : acting(blocks, "tcgen05.cp")) {
    Memory* memory = &of(*block);
    sim::machine().post(kPipe, [to, tile, block, memory] {
      for (u32 row = 0; row < 32; ++row) {
        const u32 at = start_of(tile) + row / 8 * stride_of(tile) + row % 8 * 16;
        u32 words[4];
        std::memcpy(words, sim::shared(at, 16, 16, block), 16);
        for (u32 quarter = 0; quarter < 4; ++quarter)
          for (u32 i = 0; i < 4; ++i) memory->at(quarter * 32 + row, (to & 0xffffu) + i) = words[i];
      }
    });
  }
}
template <u32 blocks, u32 n, u32 half>
QT_FN constexpr u32 mxf4_shape() {
  static_assert(n % (8 * blocks) == 0 && n <= 256, "what the instruction has");
  return (2 * half) << 4 | 1u << 7 | 1u << 10 | n / 8 << 17 | 1u << 23 | blocks << 27 |
         (2 * half) << 29;
}
template <u32 blocks>
QT_FN void mma_mxf4_tiles(u32 d, u64 a, u64 b, u32 shape, u32 a_scales, u32 b_scales, u32 keep) {
  using namespace simulated_tensor;
  Product product = {a,    b,  d & 0xffffu, shape, a_scales & 0xffffu, b_scales & 0xffffu,
                     keep, {}, {}};
  product.blocks = acting(blocks, "tcgen05.mma");
  for (const sim::Block* block : product.blocks) product.memories.push_back(&of(*block));
  sim::machine().post(kPipe, std::move(product));
}
template <u32 blocks>
QT_FN void commit_products(u32 barrier) {
  for (const sim::Block* block : simulated_tensor::acting(blocks, "tcgen05.commit")) {
    auto& b = simulated_barriers::find(barrier, *block);
    sim::machine().post(simulated_tensor::kPipe, [&b] { b.arrive(); });
  }
}

// ---- bulk tensor copies

QT_FN u32 in_even_block(u32 barrier) { return barrier; }
template <u32 blocks>
QT_FN void copy_tile_for(u32 to, const qt_tensor_map* map, u32 barrier, i32 x, i32 y, i32 z) {
  simulated_tensor::post_box_for<3>(to, map, barrier, blocks, {x, y, z, 0, 0});
}
template <u32 blocks>
QT_FN void copy_tile_4d_for(u32 to, const qt_tensor_map* map, u32 barrier, i32 x, i32 y, i32 z,
                            i32 w) {
  simulated_tensor::post_box_for<4>(to, map, barrier, blocks, {x, y, z, w, 0});
}

}  // namespace qt::cuda

#endif
