// Digests against published values; the key of a user.
#include "runtime/trust/Hmac.h"
#include "runtime/trust/UserKey.h"

#include <gtest/gtest.h>
#include <pwd.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <sys/stat.h>
#include <thread>
#include <vector>

using namespace merak;
using namespace merak::trust;
namespace fs = std::filesystem;

TEST(Hmac, PublishedValues) {
  EXPECT_EQ(toHex(view(sha256("abc"))), // FIPS 180-2
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(toHex(view(hmac("Jefe", "what do ya want for nothing?"))), // 4231
            "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST(Hmac, SameComparesEveryByte) {
  const Digest digest = sha256("x");
  EXPECT_TRUE(same(digest, sha256("x")));
  for (size_t i = 0; i < digest.size(); ++i) {
    Digest other = digest;
    other[i] ^= 1;
    EXPECT_FALSE(same(digest, other)) << i;
  }
}

TEST(Hmac, RandomBytesDiffer) {
  std::set<std::string> seen;
  for (int i = 0; i < 100; ++i)
    EXPECT_TRUE(seen.insert(randomBytes(16)).second);
}

class UserKeyTest : public testing::Test {
protected:
  void SetUp() override {
    folder_ =
        fs::path(testing::TempDir()) / ("user-key-" + std::to_string(getpid()));
    fs::create_directories(folder_);
    unsetenv("MERAK_KEY");
    setenv("XDG_CONFIG_HOME", (folder_ / "config").c_str(), 1);
  }
  void TearDown() override { fs::remove_all(folder_); }
  void write(const fs::path &path, const std::string &text, int mode = 0600) {
    fs::create_directories(path.parent_path());
    std::ofstream(path) << text;
    chmod(path.c_str(), mode_t(mode));
  }
  fs::path folder_;
};

TEST_F(UserKeyTest, IsMadeOnFirstUseAndStays) {
  auto key = userKey();
  ASSERT_TRUE(key.ok()) << key.status().str();
  EXPECT_EQ(key->size(), 64u);
  EXPECT_TRUE(isSecret(*key));
  EXPECT_EQ(*userKey(), *key);
  struct stat found {};
  const fs::path path = folder_ / "config/merak/key";
  ASSERT_EQ(stat(path.c_str(), &found), 0);
  EXPECT_EQ(found.st_mode & 0777, 0600u);
  // Nothing else was left there.
  EXPECT_EQ(std::distance(fs::directory_iterator(path.parent_path()), {}), 1);
}

TEST_F(UserKeyTest, ManyAtOnceMakeOne) {
  std::vector<std::string> keys(16);
  std::vector<std::thread> threads;
  for (std::string &key : keys)
    threads.emplace_back([&key] {
      auto made = userKey();
      key = made.ok() ? *made : made.status().str();
    });
  for (std::thread &thread : threads)
    thread.join();
  EXPECT_TRUE(isSecret(keys[0]));
  EXPECT_EQ(std::set<std::string>(keys.begin(), keys.end()).size(), 1u);
}

TEST_F(UserKeyTest, WhereItLies) {
  EXPECT_EQ(userKeyPath(), (folder_ / "config/merak/key").string());
  setenv("MERAK_KEY", "/elsewhere/key", 1);
  EXPECT_EQ(userKeyPath(), "/elsewhere/key");
  unsetenv("MERAK_KEY");
  setenv("XDG_CONFIG_HOME", "", 1);
  const char *home = getenv("HOME");
  const std::string old = home ? home : "";
  setenv("HOME", "/home-of-test", 1);
  EXPECT_EQ(userKeyPath(), "/home-of-test/.config/merak/key");
  unsetenv("HOME");
  const passwd *account = getpwuid(geteuid());
  ASSERT_TRUE(account && account->pw_dir);
  EXPECT_EQ(userKeyPath(), std::string(account->pw_dir) + "/.config/merak/key");
  setenv("HOME", old.c_str(), 1);
}

TEST_F(UserKeyTest, WhatIsNoSecretIsRefused) {
  const fs::path path = folder_ / "config/merak/key";
  const std::string good(64, 'a');
  write(path, good + "\n", 0640);
  EXPECT_EQ(userKey().status().str(),
            path.string() + ": others than its owner may use it: chmod 600 \"" +
                path.string() + "\"");
  for (const std::string &bad :
       {std::string(), std::string(31, 'a'), std::string(64, 'g')}) {
    write(path, bad);
    EXPECT_EQ(userKey().status().str(),
              path.string() + ": expected at least 32 hexadecimal digits, "
                              "found something else");
  }
  write(path, std::string(5000, 'a'));
  EXPECT_EQ(userKey().status().str(),
            path.string() + ": expected at most 4096 bytes, found more");
  fs::remove(path);
  fs::create_directory(path);
  EXPECT_EQ(userKey().status().str(), path.string() + ": is no file");
  fs::remove(path);
  ASSERT_EQ(mkfifo(path.c_str(), 0600), 0);
  EXPECT_EQ(userKey().status().str(), path.string() + ": is no file");
}

TEST_F(UserKeyTest, AnUnwritablePlaceIsNamed) {
  write(folder_ / "config", "a file");
  EXPECT_NE(userKey().status().str().find("cannot be made"), std::string::npos);
}
