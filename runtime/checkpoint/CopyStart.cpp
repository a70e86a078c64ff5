#include "runtime/checkpoint/CopyStart.h"

#include "runtime/comm/rendezvous/ProcessWorld.h"
#include "runtime/comm/rendezvous/TcpStore.h"
#include "runtime/plan/Checksum.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <set>
#include <sstream>

namespace merak::runtime {
namespace {

Result<std::vector<std::string>> gather(Store *store, const std::string &name,
                                        const std::string &mine) {
  if (!store)
    return std::vector<std::string>{mine};
  return store->gather(name, mine, kPatienceSeconds);
}

std::string packParts(const std::vector<int> &parts) {
  return fmt::format("{}", fmt::join(parts, " "));
}
std::vector<int> unpackParts(const std::string &text) {
  std::istringstream words(text);
  std::vector<int> parts;
  for (int part = 0; words >> part;)
    parts.push_back(part);
  return parts;
}

int partOfName(const std::string &name) {
  return std::stoi(name.substr(name.find('-') + 1));
}

} // namespace

Result<std::unique_ptr<CopyStart>> CopyStart::look(const CopyRun &run,
                                                   Store *store,
                                                   int64_t diskStep,
                                                   const std::string &base) {
  std::unique_ptr<CopyStart> start(new CopyStart);
  auto folder = CopyFolder::open(run, base);
  MERAK_RETURN_IF_ERROR(agree(store, "copies folder", folder.status()));
  start->folder_ = std::move(*folder);
  Status cleared =
      start->folder_->leads() ? start->folder_->removeLeftovers() : Status();
  MERAK_RETURN_IF_ERROR(agree(store, "copies leftovers", cleared));
  MERAK_RETURN_IF_ERROR(start->findHosts(store));
  MERAK_RETURN_IF_ERROR(start->choose(store, diskStep));
  return start;
}

Result<std::unique_ptr<CopyStart>> CopyStart::open(const CopyRun &run,
                                                   Store *store,
                                                   int64_t diskStep,
                                                   const std::string &base) {
  auto start = look(run, store, diskStep, base);
  if (!start)
    return start;
  const Status settled =
      (*start)->folder_->leads() ? (*start)->settle() : Status();
  MERAK_RETURN_IF_ERROR(agree(store, "copies chosen", settled));
  return start;
}

Result<uint64_t> CopyStart::pass(const CopyRun &run, int targets, World &world,
                                 int64_t diskStep, const std::string &base) {
  Store *store = world.store();
  auto start = look(run, store, diskStep, base);
  if (!start)
    return start.status();
  CopyStart &mine = **start;
  if (mine.load_.empty())
    return uint64_t(0);
  MERAK_RETURN_IF_ERROR(
      agree(store, "copies placed",
            store->rank() < targets ? mine.placeManifest() : Status()));
  // Each part that no target has goes to one of them, in turns.
  std::set<int> there;
  for (int process = 0; process < targets; ++process)
    for (int part :
         mine.choice_.present[size_t(mine.hosts_.ofProcess[size_t(process)])])
      there.insert(part);
  std::vector<std::vector<int>> wanted(size_t(store->size()));
  size_t next = 0;
  for (int part = 0; part < int(mine.choice_.parts); ++part)
    if (!there.count(part))
      wanted[next++ % size_t(targets)].push_back(part);
  return mine.move(wanted, mine.choice_.present, world);
}

// Those that see one folder share a memory.
Status CopyStart::findHosts(Store *store) {
  auto identity = folder_->identity();
  MERAK_RETURN_IF_ERROR(agree(store, "copies identity", identity.status()));
  auto all = gather(store, "copies host", *identity + "\n" + hostName());
  if (!all)
    return all.status();
  std::vector<std::string> known;
  for (size_t process = 0; process < all->size(); ++process) {
    const std::string &text = (*all)[process];
    const size_t line = text.find('\n');
    const std::string id = text.substr(0, line);
    const auto found = std::find(known.begin(), known.end(), id);
    const int host = int(found - known.begin());
    if (found == known.end()) {
      known.push_back(id);
      hosts_.names.push_back(text.substr(line + 1));
    }
    hosts_.ofProcess.push_back(host);
    if (store && int(process) == store->rank())
      hosts_.mine = host;
  }
  return {};
}

Status CopyStart::choose(Store *store, int64_t diskStep) {
  Result<FoundCopies> mine = FoundCopies();
  if (folder_->leads() && folder_->run().start > 0)
    mine = folder_->find();
  MERAK_RETURN_IF_ERROR(agree(store, "copies looked at", mine.status()));
  auto all = gather(store, "copies found",
                    fmt::format("{}\n{}", diskStep, packFound(*mine)));
  if (!all)
    return all.status();
  std::vector<FoundCopies> found(hosts_.names.size());
  for (size_t process = 0; process < all->size(); ++process) {
    const std::string &text = (*all)[process];
    const size_t line = text.find('\n');
    if (process == 0)
      diskStep = std::stoll(text.substr(0, line));
    auto host = unpackFound(text.substr(line + 1));
    if (!host)
      return host.status();
    if (host->base || !host->generations.empty()) // of who leads there
      found[size_t(hosts_.ofProcess[process])] = std::move(*host);
  }
  choice_ = chooseCopies(found);
  // Damaged ones are gone before others of the same name arrive.
  for (const FoundGeneration &generation :
       found[size_t(hosts_.mine)].generations)
    if (folder_->leads())
      for (int part : generation.damaged)
        (void)Files::system().remove(
            joinPath(folder_->generation(generation.step), partName(part)));
  const bool taken = choice_.found && choice_.step >= diskStep;
  if (diskStep >= 0) // newer than a checkpoint that is taken does not matter
    std::erase_if(choice_.lacking, [&](const CopyChoice::Lacking &lacking) {
      return lacking.step <= diskStep;
    });
  MERAK_RETURN_IF_ERROR(exchangeManifests(store));
  if (taken)
    load_ = folder_->generation(choice_.step);
  return {};
}

// Who has the manifest tells all others, and what is lacking where copies are
// not whole.
Status CopyStart::exchangeManifests(Store *store) {
  std::string mine;
  auto has = [&](int64_t step, const std::string &checksum) {
    mine = textOrNone(joinPath(folder_->generation(step), kManifestName));
    return !mine.empty() &&
           checksumText(Checksum::of(mine.data(), mine.size())) == checksum;
  };
  std::string told;
  for (const CopyChoice::Lacking &lacking : choice_.lacking)
    told +=
        (has(lacking.step, lacking.manifest) ? describe(lacking) : "") + "\n";
  auto all = gather(store, "copies lacking", told);
  if (!all)
    return all.status();
  if (!store || store->rank() == 0)
    noteLacking(*all);
  if (!choice_.found)
    return {};
  const bool here = has(choice_.step, choice_.manifest);
  auto holders = gather(store, "copies manifest here", here ? "1" : "");
  if (!holders)
    return holders.status();
  const auto first = std::find(holders->begin(), holders->end(), "1");
  if (first == holders->end())
    return Status::error("the manifest of the copies is gone");
  const bool speaks = !store || int(first - holders->begin()) == store->rank();
  auto texts = gather(store, "copies manifest", speaks ? mine : "");
  if (!texts)
    return texts.status();
  text_ = (*texts)[size_t(first - holders->begin())];
  return {};
}

// "\"w\" and 3 others, of part-2.safetensors"
std::string CopyStart::describe(const CopyChoice::Lacking &lacking) const {
  auto manifest =
      readManifest(joinPath(folder_->generation(lacking.step), kManifestName));
  if (!manifest)
    return {};
  std::set<std::string> files;
  for (int part : lacking.parts)
    files.insert(partName(part));
  std::string first;
  size_t count = 0;
  for (const auto &[name, tensor] : manifest->tensors)
    if (std::any_of(tensor.pieces.begin(), tensor.pieces.end(),
                    [&](const auto &p) { return files.count(p.file) > 0; }) &&
        count++ == 0)
      first = name;
  return count == 0   ? ""
         : count == 1 ? fmt::format("\"{}\"", first)
                      : fmt::format("\"{}\" and {} other{}", first, count - 1,
                                    count == 2 ? "" : "s");
}

void CopyStart::noteLacking(const std::vector<std::string> &described) {
  for (size_t i = 0; i < choice_.lacking.size(); ++i) {
    const CopyChoice::Lacking &lacking = choice_.lacking[i];
    std::string tensors;
    for (const std::string &text : described) {
      std::istringstream lines(text);
      std::string line;
      for (size_t n = 0; n <= i; ++n)
        std::getline(lines, line);
      if (tensors.empty())
        tensors = line;
    }
    const bool one = lacking.parts.size() == 1;
    notes_.push_back(fmt::format(
        "copies of step {} are not whole: {} of {} {} {}on no host",
        lacking.step,
        one ? "1 part" : fmt::format("{} parts", lacking.parts.size()),
        tensors.empty() ? "the state" : tensors, one ? "is" : "are",
        lacking.damaged ? "undamaged " : ""));
  }
}

// What this start goes on from, and nothing else.
Status CopyStart::settle() {
  CopyBase base{folder_->run().start, -1, 0};
  if (!load_.empty()) {
    base.from = choice_.start;
    base.step = choice_.step;
  }
  MERAK_RETURN_IF_ERROR(folder_->writeBase(base));
  const bool has =
      !load_.empty() && textOrNone(joinPath(load_, kManifestName)) == text_;
  MERAK_RETURN_IF_ERROR(folder_->removeOthers(has ? choice_.step : -1));
  return load_.empty() ? Status() : placeManifest();
}

// For parts that will come: of a generation of another manifest none are there
// any more.
Status CopyStart::placeManifest() {
  const std::string path = joinPath(load_, kManifestName);
  if (textOrNone(path) == text_)
    return {};
  if (entryAt(path) != Entry::none)
    MERAK_RETURN_IF_ERROR(folder_->removeGeneration(choice_.step));
  MERAK_RETURN_IF_ERROR(Files::system().makeFolder(load_));
  return createText(Files::system(), path, text_);
}

std::vector<int> CopyStart::wantedBy(std::span<const RankMemory> ranks) const {
  std::vector<int> wanted;
  for (const std::string &name : shardsNeeded(load_, ranks))
    wanted.push_back(partOfName(name));
  return wanted;
}

// The manifest says them.
Result<std::vector<int64_t>> CopyStart::partBytes() const {
  auto manifest = parseManifest(text_, joinPath(load_, kManifestName));
  if (!manifest)
    return manifest.status();
  std::vector<int64_t> bytes(size_t(choice_.parts), 0);
  for (const auto &[name, check] : manifest->shards)
    bytes.at(size_t(partOfName(name))) = int64_t(check.bytes);
  return bytes;
}

Result<uint64_t> CopyStart::fetch(std::span<const RankMemory> ranks,
                                  World *world) {
  Store *store = world ? world->store() : nullptr;
  if (load_.empty() || !store)
    return uint64_t(0);
  auto all = gather(store, "copies wanted", packParts(wantedBy(ranks)));
  if (!all)
    return all.status();
  std::vector<std::vector<int>> wanted;
  for (const std::string &text : *all)
    wanted.push_back(unpackParts(text));
  return move(wanted, choice_.present, *world);
}

Result<uint64_t> CopyStart::move(const std::vector<std::vector<int>> &wanted,
                                 const std::vector<std::vector<int>> &present,
                                 World &world) const {
  Store *store = world.store();
  auto bytes = partBytes();
  MERAK_RETURN_IF_ERROR(agree(store, "copies manifests", bytes.status()));
  const int me = store->rank();
  std::vector<CopyLeg> legs;
  std::vector<CopyFile> received;
  std::vector<std::shared_ptr<MappedFile>> sent;
  uint64_t total = 0;
  Status status;
  for (const CopyTransfer &transfer :
       planFetches(*bytes, wanted, present, hosts_.ofProcess)) {
    const uint64_t size = uint64_t((*bytes)[size_t(transfer.part)]);
    const std::string path = joinPath(load_, partName(transfer.part));
    total += size;
    if (transfer.to == me) {
      auto file = CopyFile::make(path, size);
      status.merge(file.status());
      if (!file)
        continue;
      legs.push_back({false, transfer.from, file->data(), size});
      received.push_back(std::move(*file));
    } else if (transfer.from == me) {
      auto file = MappedFile::open(path);
      status.merge(file.status());
      if (!file)
        continue;
      legs.push_back(
          {true, transfer.to, const_cast<char *>((*file)->data()), size});
      sent.push_back(std::move(*file));
    }
  }
  MERAK_RETURN_IF_ERROR(agree(store, "copies opened", status));
  MERAK_RETURN_IF_ERROR(
      agree(store, "copies fetched", carry(world, "copies", legs)));
  return total;
}

} // namespace merak::runtime
