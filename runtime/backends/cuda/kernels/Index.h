// Gathers of rows and their adjoints, and single elements that labels pick.
#pragma once

#include "runtime/backends/cuda/kernels/Loops.h"
#include "runtime/backends/cuda/kernels/Pack.h"

namespace merak::cuda {

// ---------------------------------------------------------------- gather

// Which ids name one row, without atomics. Ids of a group are dealt into
// buckets by their rows; in each bucket they keep their order.
struct RowLists {
  int32_t buckets = 1; // of a group, beside that of ids that are not here
  // By id: its row or -1, and its bucket.
  int32_t *row = nullptr, *bucket = nullptr;
  // By place, bucket after bucket: the id there, its row, and whether it is the
  // first id of a row that is here.
  int32_t *id = nullptr, *idRow = nullptr, *first = nullptr;
  int32_t *begin = nullptr; // of each group's buckets: the first place
};

// The table is [groups, before, rows, after], the other tensor [groups, before,
// ids, after]; each group has ids of its own.
struct GatherArgs {
  Ref table, ids, other;
  Loops<3> groups;        // operand 0: table, 1: the other tensor, 2: ids
  Loops<2> before, after; // operand 0: table, 1: the other tensor
  Loops<2> idLoops;       // operand 0: ids, 1: the other tensor
  int64_t rows = 0, rowStride = 0, globalRows = 0, first = 0;
  bool add = false;
  // Rows of neighbouring elements in both, f32, bf16 or f16, that take packs of
  // kPackedElements.
  bool packed = false;
  int combine = 0; // scatter: 0 sum, 1 product, 2 largest, 3 smallest
  RowLists lists;  // scatter

  MERAK_HD int64_t allIds() const { return groups.count * idLoops.count; }

  struct Place {
    int64_t group, id; // of the group
  };
  // Of the id at `index` among those of all groups. Mostly there is one, and a
  // division of 64 bits takes as long as a row's load.
  MERAK_HD Place placeOf(int64_t index) const {
    if (groups.count == 1)
      return {0, index};
    const int64_t group = index / idLoops.count;
    return {group, index - group * idLoops.count};
  }
  // The local row that an id names, -1 if it is not here.
  MERAK_HD int64_t row(const Place &place) const {
    int64_t o[2], og[3];
    groups.at(place.group, og);
    idLoops.at(place.id, o);
    int64_t id = load<int64_t>(ids, og[2] + o[0]);
    if (id < 0)
      id += globalRows;
    const int64_t local = id - first;
    return local >= 0 && local < rows ? local : -1;
  }
};

// A block a row, where it takes packs, whatever the types.
constexpr int kPackedElements = 4;

// body(from, to): how elements are widened and narrowed, of table and rows.
template <typename Body>
MERAK_HD void withTypes(const GatherArgs &a, const Body &body) {
  withReal(a.table.type, [&](auto table) {
    withReal(a.other.type, [&](auto other) { body(table, other); });
  });
}

template <typename Table, typename Other, typename Block>
MERAK_HD void gatherPacked(const Block &block, const GatherArgs &a) {
  constexpr int kSize = kPackedElements, kPacks = 4;
  const int64_t ids = a.allIds(), packs = a.after.count / kSize;
  const int64_t step = block.threads();
  for (int64_t i = block.block(); i < ids; i += block.blocks()) {
    const GatherArgs::Place place = a.placeOf(i);
    int64_t og[3], oi[2];
    a.groups.at(place.group, og);
    a.idLoops.at(place.id, oi);
    const int64_t row = a.row(place);
    const auto *from = &slot<typename Table::Word>(
        a.table, og[0] + (row < 0 ? 0 : row) * a.rowStride);
    auto *to = &slot<typename Other::Word>(a.other, og[1] + oi[1]);
    for (int64_t c = block.thread(); c < packs; c += kPacks * step) {
      Pack<typename Table::Word, kSize> x[kPacks] = {};
      Pack<typename Other::Word, kSize> before[kPacks] = {};
      MERAK_UNROLL
      for (int u = 0; u < kPacks; ++u) {
        if (c + u * step >= packs)
          continue;
        if (row >= 0)
          x[u] = loadPack<kSize>(from + (c + u * step) * kSize);
        if (a.add)
          before[u] = loadPack<kSize>(to + (c + u * step) * kSize);
      }
      MERAK_UNROLL
      for (int u = 0; u < kPacks; ++u) {
        if (c + u * step >= packs)
          continue;
        Pack<typename Other::Word, kSize> y;
        MERAK_UNROLL
        for (int k = 0; k < kSize; ++k) { // as a copy converts and adds
          y.words[k] = Other::narrow(Table::widen(x[u].words[k]));
          if (a.add)
            y.words[k] = Other::narrow(Other::widen(y.words[k]) +
                                       Other::widen(before[u].words[k]));
        }
        storePack(to + (c + u * step) * kSize, y);
      }
    }
  }
}

template <typename Word, typename Block>
MERAK_HD void gatherWords(const Block &block, const GatherArgs &a) {
  const int64_t count = a.allIds() * a.before.count * a.after.count;
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < count; i += step) {
    const int64_t outer = i / a.after.count;
    const int64_t id = outer % a.idLoops.count;
    const int64_t tables = outer / a.idLoops.count; // [groups, before]
    const int64_t group = tables / a.before.count;
    int64_t og[3], ob[2], oi[2], oa[2];
    a.after.at(i - outer * a.after.count, oa);
    a.groups.at(group, og);
    a.before.at(tables - group * a.before.count, ob);
    a.idLoops.at(id, oi);
    const int64_t row = a.row({group, id});
    slot<Word>(a.other, og[1] + ob[1] + oi[1] + oa[1]) =
        row < 0
            ? Word{0}
            : slot<Word>(a.table, og[0] + ob[0] + row * a.rowStride + oa[0]);
  }
}

template <typename Block>
MERAK_HD void gatherBody(const Block &block, const GatherArgs &a) {
  if (a.packed)
    return withTypes(a, [&](auto table, auto other) {
      gatherPacked<decltype(table), decltype(other)>(block, a);
    });
  switch (a.table.type) {
  case Type::Bool:
  case Type::U8:
  case Type::I8:
    return gatherWords<uint8_t>(block, a);
  case Type::BF16:
  case Type::F16:
  case Type::I16:
  case Type::U16:
    return gatherWords<uint16_t>(block, a);
  case Type::F32:
  case Type::I32:
  case Type::U32:
    return gatherWords<uint32_t>(block, a);
  default:
    return gatherWords<uint64_t>(block, a);
  }
}

// ---------------------------------------------------------------- scatter

template <typename Block>
MERAK_HD void scatterIdsBody(const Block &block, const GatherArgs &a) {
  const int64_t ids = a.allIds(), step = itemStep(block);
  for (int64_t i = firstItem(block); i < ids; i += step) {
    const int32_t row = static_cast<int32_t>(a.row(a.placeOf(i)));
    a.lists.row[i] = row;
    a.lists.bucket[i] = row < 0 ? a.lists.buckets : row % a.lists.buckets;
  }
}

// A block a bucket: counts the ids of those before it, then writes down its
// own.
template <typename Block>
MERAK_HD void scatterListsBody(Block &block, const GatherArgs &a) {
  const RowLists &lists = a.lists;
  const int64_t ids = a.idLoops.count, buckets = lists.buckets + 1;
  const int threads = block.threads();
  for (int64_t w = block.block(); w < a.groups.count * buckets;
       w += block.blocks()) {
    const int64_t first = w / buckets * ids;
    const int32_t own = static_cast<int32_t>(w % buckets);
    // Several loads before any is used: a barrier after each takes less time
    // than a load.
    int32_t some[kAtOnce];
    const auto look = [&](int64_t round) {
      MERAK_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        const int64_t i = round + u * threads + block.thread();
        some[u] = i < ids ? lists.bucket[first + i] : INT32_MAX;
      }
    };
    int32_t before = 0;
    for (int64_t round = 0; round < ids; round += kAtOnce * threads) {
      look(round);
      MERAK_UNROLL
      for (int u = 0; u < kAtOnce; ++u)
        before += some[u] < own;
    }
    int64_t place = first + block.sum(before);
    if (block.thread() == 0)
      lists.begin[w] = static_cast<int32_t>(place);
    for (int64_t round = 0; round < ids; round += kAtOnce * threads) {
      look(round);
      MERAK_UNROLL
      for (int u = 0; u < kAtOnce; ++u) {
        if (round + u * threads >= ids)
          break;
        const int64_t i = first + round + u * threads + block.thread();
        const bool mine = some[u] == own;
        int total = 0;
        const int64_t at = place + block.before(mine, total);
        if (mine) {
          lists.id[at] = static_cast<int32_t>(i);
          lists.idRow[at] = lists.row[i];
        }
        place += total;
      }
    }
    block.sync();
    const int64_t begin = lists.begin[w];
    for (int64_t at = begin + block.thread(); at < place; at += threads) {
      const int32_t row = lists.idRow[at];
      bool isFirst = row >= 0;
      for (int64_t earlier = at - 1; isFirst && earlier >= begin; --earlier)
        isFirst = lists.idRow[earlier] != row;
      lists.first[at] = isFirst;
    }
  }
}

// The ids of one row, in their order, as the block at the first one's place
// finds them.
struct RowList {
  const GatherArgs &ids;
  const RowLists &lists;
  int64_t place, end; // of the bucket
  int32_t id, row;

  MERAK_HD RowList(const GatherArgs &a, int64_t at)
      : ids(a), lists(a.lists), place(at), id(lists.id[at]),
        row(lists.idRow[at]) {
    const int64_t buckets = lists.buckets + 1;
    const int64_t w = a.placeOf(id).group * buckets + lists.bucket[id];
    end = w + 1 < a.groups.count * buckets ? lists.begin[w + 1] : a.allIds();
  }
  // use(offsets, count) for pieces of the list, where the ids' rows begin in
  // the other tensor; all threads see the same.
  template <typename Block, typename Use>
  MERAK_HD void forEachPiece(Block &block, const Use &use) const {
    int64_t *found =
        block.template scratch<int64_t, kMostThreads *int(sizeof(int64_t))>();
    for (int64_t round = place; round < end; round += block.threads()) {
      const int64_t i = round + block.thread();
      const bool mine = i < end && lists.idRow[i] == row;
      int total = 0;
      const int at = block.before(mine, total);
      if (mine) {
        int64_t o[2];
        ids.idLoops.at(ids.placeOf(lists.id[i]).id, o);
        found[at] = o[1];
      }
      block.sync();
      use(static_cast<const int64_t *>(found), total);
      block.sync();
    }
  }
};

// A block an id: the first of a list adds all of it to its row, in order.
template <typename Value, typename Block>
MERAK_HD void scatterAs(Block &block, const GatherArgs &a) {
  const int64_t ids = a.allIds();
  const int64_t columns = a.before.count * a.after.count;
  const bool isSum = a.combine == 0;
  for (int64_t place = block.block(); place < ids; place += block.blocks()) {
    if (a.lists.first[place] == 0)
      continue;
    const RowList list(a, place);
    int64_t og[3];
    a.groups.at(a.placeOf(list.id).group, og);
    for (int64_t some = 0; some < columns; some += block.threads()) {
      const int64_t c = some + block.thread();
      const bool here = c < columns;
      int64_t ob[2] = {}, oa[2] = {};
      if (here) {
        a.before.at(c / a.after.count, ob);
        a.after.at(c % a.after.count, oa);
      }
      const int64_t to = og[0] + ob[0] + list.row * a.rowStride + oa[0];
      Value sum = here && a.add && isSum ? load<Value>(a.table, to) : Value(0);
      bool first = true;
      list.forEachPiece(block, [&](const int64_t *found, int count) {
        for (int j = 0; here && j < count; ++j) {
          const Value x =
              load<Value>(a.other, og[1] + ob[1] + found[j] + oa[1]);
          if (isSum)
            sum += x;
          else if (first)
            sum = x;
          else if (a.combine == 1)
            sum *= x;
          else if ((a.combine == 2 ? x > sum : x < sum) || x != x)
            sum = x;
          first = false;
        }
      });
      if (here)
        store<Value>(a.table, to, sum, a.add && !isSum);
    }
  }
}

// Sums of rows that take packs.
template <typename Table, typename Other, typename Block>
MERAK_HD void scatterPacked(Block &block, const GatherArgs &a) {
  using Word = typename Other::Word;
  constexpr int kSize = kPackedElements, kRows = 6; // 64 registers
  const int64_t ids = a.allIds(), packs = a.after.count / kSize;
  for (int64_t place = block.block(); place < ids; place += block.blocks()) {
    if (a.lists.first[place] == 0)
      continue;
    const RowList list(a, place);
    int64_t og[3];
    a.groups.at(a.placeOf(list.id).group, og);
    for (int64_t some = 0; some < packs; some += block.threads()) {
      const int64_t c = some + block.thread();
      const bool here = c < packs;
      auto *to =
          &slot<typename Table::Word>(a.table, og[0] + list.row * a.rowStride) +
          c * kSize;
      const Word *from = &slot<Word>(a.other, og[1]) + c * kSize;
      Pack<typename Table::Word, kSize> result = {};
      if (here && a.add)
        result = loadPack<kSize>(to);
      float sums[kSize];
      MERAK_UNROLL
      for (int k = 0; k < kSize; ++k)
        sums[k] = Table::widen(result.words[k]);
      list.forEachPiece(block, [&](const int64_t *found, int count) {
        for (int j = 0; here && j < count; j += kRows) {
          Pack<Word, kSize> rows[kRows];
          MERAK_UNROLL
          for (int u = 0; u < kRows; ++u) {
            rows[u] = loadPack<kSize>(from + found[j + u < count ? j + u : j]);
          }
          MERAK_UNROLL
          for (int u = 0; u < kRows; ++u) {
            if (j + u >= count)
              continue;
            MERAK_UNROLL
            for (int k = 0; k < kSize; ++k)
              sums[k] += Other::widen(rows[u].words[k]);
          }
        }
      });
      MERAK_UNROLL
      for (int k = 0; k < kSize; ++k)
        result.words[k] = Table::narrow(sums[k]);
      if (here)
        storePack(to, result);
    }
  }
}

// By itself, since it takes fewer registers than what does without packs.
template <typename Block>
MERAK_HD void scatterPacksBody(Block &block, const GatherArgs &a) {
  withTypes(a, [&](auto table, auto other) {
    scatterPacked<decltype(table), decltype(other)>(block, a);
  });
}

template <typename Block>
MERAK_HD void scatterRowsBody(Block &block, const GatherArgs &a) {
  switch (a.table.type) {
  case Type::F32:
  case Type::BF16:
  case Type::F16:
    return scatterAs<float>(block, a);
  case Type::F64:
    return scatterAs<double>(block, a);
  default:
    return scatterAs<int64_t>(block, a);
  }
}

// A row-sparse gradient: the lists of ids that name one row, as above, but
// their sums stay at the first id of each.
struct CoalesceArgs {
  GatherArgs ids; // `other`: the slices
  Ref rows, unique;
  Loops<2> places;  // operand 0: unique, 1: rows
  Loops<2> columns; // operand 0: slices, 1: rows
  bool add = false;
};

template <typename Block>
MERAK_HD void coalesceRowsBody(Block &block, const CoalesceArgs &a) {
  const GatherArgs &ids = a.ids;
  for (int64_t i = block.block(); i < ids.allIds(); i += block.blocks()) {
    const RowList list(ids, i);
    const bool first = ids.lists.first[i] != 0;
    int64_t place[2];
    a.places.at(list.id, place);
    if (block.thread() == 0)
      store<int64_t>(a.unique, place[0], first ? list.row : int64_t(-1), a.add);
    for (int64_t some = 0; some < a.columns.count; some += block.threads()) {
      const int64_t c = some + block.thread();
      const bool here = c < a.columns.count;
      int64_t o[2] = {};
      if (here)
        a.columns.at(c, o);
      float sum = 0;
      if (first)
        list.forEachPiece(block, [&](const int64_t *found, int count) {
          for (int j = 0; here && j < count; ++j) {
            sum += load<float>(ids.other, found[j] + o[0]);
          }
        });
      if (here)
        store<float>(a.rows, place[1] + o[1], sum, a.add);
    }
  }
}

// Ids by whether others name their rows; all operands are dense.
struct SplitIdsArgs {
  Ref ids, named, prior, delayed;
  int64_t size = 0, count = 0, others = 0;
  bool add = false;

  MERAK_HD int64_t row(const Ref &of, int64_t place) const {
    const int64_t id = load<int64_t>(of, place), row = id < 0 ? id + size : id;
    return row >= 0 && row < size ? row : -1;
  }
};

template <typename Block>
MERAK_HD void splitIdsBody(const Block &block, const SplitIdsArgs &a) {
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.count; i += step) {
    const int64_t row = a.row(a.ids, i);
    bool named = false;
    for (int64_t j = 0; row >= 0 && !named && j < a.others; ++j)
      named = a.row(a.named, j) == row;
    store<int64_t>(a.prior, i, named ? row : a.size, a.add);
    store<int64_t>(a.delayed, i, row >= 0 && !named ? row : a.size, a.add);
  }
}

// ---------------------------------------------------------------- pick

struct PickArgs {
  Ref matrix, labels, vector;
  Loops<3> rows; // matrix, labels, vector
  int64_t columns = 0, columnStride = 0, first = 0, ignored = 0;
  bool hasIgnored = false, add = false;

  MERAK_HD int64_t column(int64_t offset) const {
    const int64_t label = load<int64_t>(labels, offset);
    const int64_t local = label - first;
    const bool here = local >= 0 && local < columns;
    return here && !(hasIgnored && label == ignored) ? local : -1;
  }
};

template <typename Block>
MERAK_HD void pickBody(const Block &block, const PickArgs &a) {
  const int64_t step = itemStep(block);
  for (int64_t i = firstItem(block); i < a.rows.count; i += step) {
    int64_t o[3];
    a.rows.at(i, o);
    const int64_t column = a.column(o[1]);
    const float value =
        column < 0 ? 0 : load<float>(a.matrix, o[0] + column * a.columnStride);
    store<float>(a.vector, o[2], value, a.add);
  }
}

template <typename Block>
MERAK_HD void pickGradBody(const Block &block, const PickArgs &a) {
  const int64_t count = a.rows.count * a.columns, step = itemStep(block);
  for (int64_t i = firstItem(block); i < count; i += step) {
    int64_t o[3];
    const int64_t row = i / a.columns, j = i - row * a.columns;
    a.rows.at(row, o);
    const bool here = a.column(o[1]) == j;
    if (here || !a.add)
      store<float>(a.matrix, o[0] + j * a.columnStride,
                   here ? load<float>(a.vector, o[2]) : 0.0f, a.add);
  }
}

} // namespace merak::cuda
