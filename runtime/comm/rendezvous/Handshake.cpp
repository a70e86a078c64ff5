#include "runtime/comm/rendezvous/Handshake.h"

#include "runtime/trust/Hmac.h"

#include <cstring>

namespace merak::runtime {
namespace {

// Goes up when anything of the wire changes.
constexpr std::string_view kMark = "merak-2\n";
static_assert(kMark.size() == kMarkBytes);
static_assert(trust::kDigestBytes == 32);

void appendNumber(std::string &bytes, int64_t number) {
  bytes.append(reinterpret_cast<const char *>(&number), sizeof(number));
}
int64_t numberAt(std::string_view bytes, size_t position) {
  int64_t number;
  std::memcpy(&number, bytes.data() + position, sizeof(number));
  return number;
}

trust::Digest digestAt(std::string_view bytes, size_t position) {
  trust::Digest digest;
  std::memcpy(digest.data(), bytes.data() + position, digest.size());
  return digest;
}

// Of a Hello all but its proof.
std::string encodeClaim(const Hello &hello) {
  std::string bytes(kMark);
  appendNumber(bytes, hello.rank);
  appendNumber(bytes, hello.size);
  std::string host = hello.host.substr(0, kHostBytes);
  host.resize(kHostBytes);
  return bytes + host + hello.nonce;
}

// What a rank proves, and what rank 0 proves, begin differently: neither can
// be shown as the other.
trust::Digest proofOfRank(std::string_view claim, const std::string &challenge,
                          const std::string &token) {
  return trust::hmac(token, "rank\n" + challenge + std::string(claim));
}
trust::Digest proofOfServer(const Frame &verdict, const Hello &hello,
                            const std::string &challenge,
                            const std::string &token) {
  return trust::hmac(token, "rank 0\n" + challenge + encodeClaim(hello) +
                                encodeFrame(verdict));
}

} // namespace

std::string encodeChallenge(const std::string &nonce) {
  return std::string(kMark) + nonce;
}

std::optional<std::string> decodeChallenge(std::string_view bytes) {
  if (bytes.size() != kChallengeBytes || bytes.substr(0, kMarkBytes) != kMark)
    return {};
  return std::string(bytes.substr(kMarkBytes));
}

std::string encodeHello(const Hello &hello, const std::string &challenge,
                        const std::string &token) {
  std::string claim = encodeClaim(hello);
  const trust::Digest proof = proofOfRank(claim, challenge, token);
  claim += trust::view(proof);
  return claim;
}

std::optional<Hello> decodeHello(std::string_view bytes,
                                 const std::string &challenge,
                                 const std::string &token, bool &proven) {
  if (bytes.size() != kHelloBytes || bytes.substr(0, kMarkBytes) != kMark)
    return {};
  const size_t claim = kHelloBytes - trust::kDigestBytes;
  proven = trust::same(digestAt(bytes, claim),
                       proofOfRank(bytes.substr(0, claim), challenge, token));
  Hello hello;
  hello.rank = numberAt(bytes, kMarkBytes);
  hello.size = numberAt(bytes, kMarkBytes + 8);
  const std::string_view host = bytes.substr(kMarkBytes + 16, kHostBytes);
  hello.host = std::string(host.substr(0, host.find('\0')));
  hello.nonce =
      std::string(bytes.substr(kMarkBytes + 16 + kHostBytes, kNonceBytes));
  return hello;
}

Frame proven(Frame verdict, const Hello &hello, const std::string &challenge,
             const std::string &token) {
  const trust::Digest proof = proofOfServer(verdict, hello, challenge, token);
  verdict.value.insert(0, trust::view(proof));
  return verdict;
}

bool checkProof(Frame &verdict, const Hello &hello,
                const std::string &challenge, const std::string &token) {
  if (verdict.value.size() < trust::kDigestBytes)
    return false;
  const trust::Digest proof = digestAt(verdict.value, 0);
  verdict.value.erase(0, trust::kDigestBytes);
  return trust::same(proof, proofOfServer(verdict, hello, challenge, token));
}

} // namespace merak::runtime
