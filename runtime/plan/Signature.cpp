#include "runtime/plan/Signature.h"

#include "runtime/trust/Hmac.h"
#include "runtime/trust/UserKey.h"

#include <filesystem>
#include <fmt/format.h>

namespace merak {
namespace {

// Goes up when anything else is signed.
constexpr std::string_view kDomain = "merak plan 1\n";

trust::Digest digestOf(const std::string &text, const std::string &key) {
  return trust::hmac(key, std::string(kDomain) + text);
}

} // namespace

void PlanDigest::add(std::string_view file) {
  text_ += trust::view(trust::sha256(file));
}

std::string PlanDigest::sign() const {
  const auto key = trust::userKey();
  if (!key.ok())
    return {};
  return trust::toHex(trust::view(digestOf(text_, *key))) + "\n";
}

bool PlanDigest::isSignedBy(const std::string &line,
                            const std::string &key) const {
  const std::string wanted = trust::toHex(trust::view(digestOf(text_, key)));
  // Digests of both compare in the same time whatever the line is.
  return trust::same(trust::sha256(line), trust::sha256(wanted));
}

Status canSign() { return trust::userKey().status(); }

Status checkSignature(const std::string &dir, const PlanDigest &digest) {
  const std::string remedy =
      "compile the model here, or give --trust-plan if you trust whoever made "
      "the plan";
  const std::string path =
      (std::filesystem::path(dir) / kSignatureFile).string();
  std::error_code error;
  if (!std::filesystem::exists(path, error))
    return Status::error(
        fmt::format("{}: its kernels are machine code that nobody signed: {}",
                    dir, remedy));
  const auto key = trust::userKey();
  if (!key.ok())
    return Status::error(
        fmt::format("{}: its signature cannot be checked ({}): {}", dir,
                    key.status().str(), remedy));
  const auto line = trust::readShort(path);
  if (!line.ok())
    return line.status();
  if (digest.isSignedBy(*line, *key))
    return {};
  return Status::error(fmt::format(
      "{}: its kernels are machine code that was not signed with this user's "
      "key \"{}\", or the plan was changed since: {}",
      dir, trust::userKeyPath(), remedy));
}

} // namespace merak
