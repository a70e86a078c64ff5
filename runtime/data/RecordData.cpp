// Samples as rows of the table `samples` of an SQLite database, whose rowids
// follow each other. An input is the column of its name: a BLOB of one sample's
// elements, little endian and row major; of one element also an INTEGER or a
// REAL.
#include "runtime/core/DType.h"
#include "runtime/core/Finite.h"
#include "runtime/core/HalfFloat.h"
#include "runtime/data/DataSource.h"

#include <fmt/format.h>

#include <fmt/ranges.h>
#include <fstream>

#ifdef MERAK_SQLITE
#include <sqlite3.h>
#endif

#include <cstring>
#include <limits>
#include <mutex>

namespace merak::runtime {

#ifdef MERAK_SQLITE
namespace {

struct CloseDatabase {
  void operator()(sqlite3 *database) const { sqlite3_close(database); }
};
struct EndStatement {
  void operator()(sqlite3_stmt *statement) const {
    sqlite3_finalize(statement);
  }
};
using Database = std::unique_ptr<sqlite3, CloseDatabase>;
using Statement = std::unique_ptr<sqlite3_stmt, EndStatement>;

// An identifier of SQL; quotes inside are doubled.
std::string quoted(const std::string &name) {
  std::string text = "\"";
  for (char c : name)
    text += c == '"' ? std::string("\"\"") : std::string(1, c);
  return text + "\"";
}

// A number as an element of the type. False if it does not fit.
bool storeNumber(planpb::DType dtype, sqlite3_value *value, char *out) {
  if (isFloat(dtype)) {
    const double number = sqlite3_value_double(value);
    const float single = static_cast<float>(number);
    const uint16_t half =
        dtype == planpb::BF16 ? floatToBf16(single) : floatToF16(single);
    if (dtype == planpb::F64)
      std::memcpy(out, &number, sizeof(number));
    else if (dtype == planpb::F32)
      std::memcpy(out, &single, sizeof(single));
    else
      std::memcpy(out, &half, sizeof(half));
    return true;
  }
  if (sqlite3_value_type(value) != SQLITE_INTEGER)
    return false;
  const int64_t number = sqlite3_value_int64(value);
  const int bits = static_cast<int>(dtypeSize(dtype)) * 8;
  const bool isSigned = dtype == planpb::I8 || dtype == planpb::I16 ||
                        dtype == planpb::I32 || dtype == planpb::I64;
  if (dtype == planpb::BOOL && number != 0 && number != 1)
    return false;
  if (bits < 64 && (isSigned ? number < -(int64_t{1} << (bits - 1)) ||
                                   number >= int64_t{1} << (bits - 1)
                             : number < 0 || number >= int64_t{1} << bits))
    return false;
  if (bits == 64 && !isSigned && number < 0)
    return false;
  std::memcpy(out, &number, static_cast<size_t>(bits / 8));
  return true;
}

class RecordData : public DataSource {
public:
  explicit RecordData(const planpb::PlanFile &plan) : DataSource(plan) {}

  Status open(const std::string &path) {
    path_ = path;
    sqlite3 *database = nullptr;
    const int code =
        sqlite3_open_v2(path.c_str(), &database,
                        SQLITE_OPEN_READONLY | SQLITE_OPEN_NOMUTEX, nullptr);
    database_.reset(database);
    if (code != SQLITE_OK)
      return fail("cannot open: " + why());
    // The file is a stranger's: nothing in it may run.
    sqlite3_db_config(database, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
    sqlite3_db_config(database, SQLITE_DBCONFIG_TRUSTED_SCHEMA, 0, nullptr);
    sqlite3_db_config(database, SQLITE_DBCONFIG_ENABLE_VIEW, 0, nullptr);
    sqlite3_exec(database, "PRAGMA cell_size_check=ON; PRAGMA mmap_size=0",
                 nullptr, nullptr, nullptr);
    MERAK_RETURN_IF_ERROR(countRows());
    return prepareColumns();
  }

  std::string contents() const override {
    std::string first(1 << 16, '\0'); // has the schema and the first rows
    std::ifstream file(path_, std::ios::binary);
    file.read(first.data(), std::streamsize(first.size()));
    return fmt::format("{} records {}", count_,
                       hashOf(first.data(), uint64_t(file.gcount())));
  }

  int64_t samples() const override { return count_; }

  Status readBox(int input, int64_t sample, const layout::Box &box, void *data,
                 const std::vector<int64_t> &shape) override {
    const bool batched = plan().inputs(input).batched();
    if (!batched || box.globalOrigin.empty())
      return readRow(input, 0, box, data, shape);
    layout::Box part = box;
    for (int64_t r = 0; r < box.extent[0]; ++r) {
      part.globalOrigin[0] = 0;
      part.localOrigin[0] = box.localOrigin[0] + r;
      part.extent[0] = 1;
      MERAK_RETURN_IF_ERROR(readRow(input, sample + r, part, data, shape));
    }
    return {};
  }

  std::string describe(int, int64_t sample) const override {
    return fmt::format("\"{}\" row {}", path_, first_ + sample);
  }

private:
  Status fail(const std::string &what) const {
    return Status::error(fmt::format("\"{}\": {}", path_, what));
  }
  std::string why() const { return sqlite3_errmsg(database_.get()); }

  Result<Statement> prepare(const std::string &text) {
    sqlite3_stmt *statement = nullptr;
    if (sqlite3_prepare_v2(database_.get(), text.c_str(), -1, &statement,
                           nullptr) != SQLITE_OK)
      return fail(why());
    return Statement(statement);
  }

  Status countRows() {
    auto range = prepare("SELECT min(rowid), max(rowid) FROM samples");
    if (!range)
      return range.status();
    if (sqlite3_step(range->get()) != SQLITE_ROW)
      return fail(why());
    if (sqlite3_column_type(range->get(), 0) != SQLITE_INTEGER)
      return fail("the table samples has no rows");
    first_ = sqlite3_column_int64(range->get(), 0);
    const int64_t last = sqlite3_column_int64(range->get(), 1);
    if (first_ < 0 || last < first_ ||
        last - first_ == std::numeric_limits<int64_t>::max())
      return fail(
          fmt::format("rows {} to {} are no count of samples", first_, last));
    count_ = last - first_ + 1;
    return {};
  }

  Status prepareColumns() {
    Status problems;
    for (const planpb::Input &input : plan().inputs()) {
      auto column =
          prepare(fmt::format("SELECT samples.{} FROM samples WHERE rowid = ?",
                              quoted(input.name())));
      if (!column)
        problems.merge(
            Status(column.status())
                .withContext(fmt::format("input \"{}\"", input.name())));
      else
        columns_.push_back(std::move(*column));
    }
    return problems;
  }

  // The part of one row's value that the box holds.
  Status readRow(int input, int64_t sample, const layout::Box &box, void *data,
                 const std::vector<int64_t> &shape) {
    const planpb::Input &proto = plan().inputs(input);
    std::vector<int64_t> whole(proto.shape().begin(), proto.shape().end());
    if (proto.batched() && !whole.empty())
      whole[0] = 1;
    const int64_t size = dtypeSize(proto.dtype());
    uint64_t bytes = static_cast<uint64_t>(size);
    for (int64_t n : whole)
      bytes *= static_cast<uint64_t>(n);
    std::lock_guard<std::mutex> lock(lock_);
    sqlite3_stmt *statement = columns_[input].get();
    sqlite3_bind_int64(statement, 1, first_ + sample);
    Status status;
    if (const int code = sqlite3_step(statement); code == SQLITE_ROW)
      status =
          copyValue(statement, proto, bytes, whole, box, data, shape, size);
    else
      status = Status::error(code == SQLITE_DONE
                                 ? "is missing: rows must follow each other"
                                 : why());
    sqlite3_reset(statement);
    return std::move(status).withContext(describe(input, sample));
  }

  static Status copyValue(sqlite3_stmt *statement, const planpb::Input &proto,
                          uint64_t bytes, const std::vector<int64_t> &whole,
                          const layout::Box &box, void *data,
                          const std::vector<int64_t> &shape, int64_t size) {
    sqlite3_value *value = sqlite3_column_value(statement, 0);
    char number[8];
    const void *from = number;
    const int type = sqlite3_value_type(value);
    if (type == SQLITE_BLOB) {
      from = sqlite3_value_blob(value);
      if (const auto found = static_cast<uint64_t>(sqlite3_value_bytes(value));
          found != bytes || !from)
        return Status::error(
            fmt::format("expected {} bytes for input \"{}\" ({} of [{}]), "
                        "found {}",
                        bytes, proto.name(), dtypeName(proto.dtype()),
                        fmt::join(whole, ","), found));
    } else if ((type != SQLITE_INTEGER && type != SQLITE_FLOAT) ||
               bytes != static_cast<uint64_t>(size)) {
      return Status::error(
          fmt::format("expected a BLOB for input \"{}\"", proto.name()));
    } else if (!storeNumber(proto.dtype(), value, number)) {
      return Status::error(fmt::format("expected {} for input \"{}\", found {}",
                                       dtypeName(proto.dtype()), proto.name(),
                                       sqlite3_value_double(value)));
    }
    layout::copyBox(from, whole, box.globalOrigin, data, shape, box.localOrigin,
                    box.extent, size);
    return {};
  }

  std::string path_;
  Database database_;
  std::vector<Statement> columns_; // by input; go before the database
  std::mutex lock_;                // one reads at a time
  int64_t first_ = 0, count_ = 0;
};

} // namespace

Result<std::unique_ptr<DataSource>> openRecordData(const planpb::PlanFile &plan,
                                                   const DataOptions &options) {
  auto source = std::make_unique<RecordData>(plan);
  MERAK_RETURN_IF_ERROR(source->open(options.path));
  return std::unique_ptr<DataSource>(std::move(source));
}

#else

Result<std::unique_ptr<DataSource>> openRecordData(const planpb::PlanFile &,
                                                   const DataOptions &options) {
  return Status::error(fmt::format(
      "\"{}\": this build reads no SQLite files (it was configured without "
      "libsqlite3-dev)",
      options.path));
}

#endif

} // namespace merak::runtime
