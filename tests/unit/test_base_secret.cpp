// The API key cannot slip out by mistake, and its fingerprint is what other clients compute.
#include "base/fingerprint.hpp"
#include "base/id.hpp"
#include "base/secret.hpp"

#include <doctest/doctest.h>

#include <ostream>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

using namespace sandboxd;

namespace {

template <class T>
concept streamable = requires(std::ostream& out, const T& value) {
    out << value;
};

} // namespace

TEST_CASE("secret: no way out but reveal()") {
    static_assert(!streamable<secret>);
    static_assert(!std::is_convertible_v<secret, std::string>);
    static_assert(!std::is_convertible_v<secret, std::string_view>);
    static_assert(!std::is_constructible_v<std::string, secret>);
    static_assert(!std::is_convertible_v<std::string, secret>); // nor in, unseen
    CHECK(secret("key").reveal() == "key");
    CHECK(secret().empty());
    CHECK_FALSE(secret("key").empty());
}

TEST_CASE("secret: a value like any other") {
    const secret one("one key of some length, on the heap");
    secret other(one);
    CHECK(bool(other == one));
    other = secret("two");
    CHECK_FALSE(bool(other == one));
    other = one;
    CHECK(bool(other == one));
    const secret& same = other;
    other = same;
    CHECK(bool(other == one));
    const secret moved(std::move(other));
    CHECK(bool(moved == one));
}

TEST_CASE("secret: its memory is overwritten") {
    alignas(secret) unsigned char room[sizeof(secret)];
    auto* held = new (room) secret("short-key"); // short enough to live inside the object
    CHECK(std::string_view(reinterpret_cast<char*>(room), sizeof room).find("short-key") !=
          std::string_view::npos);
    held->~secret();
    const volatile unsigned char* bytes = room;
    std::string after;
    for (std::size_t i = 0; i < sizeof room; ++i)
        after += static_cast<char>(bytes[i]);
    CHECK(after.find("short-key") == std::string::npos);
    CHECK(after.find("hort-ke") == std::string::npos);
}

TEST_CASE("fingerprint: known answers") {
    // printf abc | sha256sum
    CHECK(sha256_hex("abc") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    CHECK(sha256_hex("") == "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    // printf 'deepinfra-sandboxd key v1\nexample-key-not-a-real-one' | sha256sum
    CHECK(key_fingerprint(secret("example-key-not-a-real-one")) == "7b3046d3900027a4");
}

TEST_CASE("id: random, in hexadecimal digits") {
    std::set<std::string> ids;
    for (int i = 0; i < 1'000; ++i) {
        const std::string id = random_hex(16);
        CHECK(id.size() == 32);
        CHECK(id.find_first_not_of("0123456789abcdef") == std::string::npos);
        ids.insert(id);
    }
    CHECK(ids.size() == 1'000);
    CHECK(random_hex(0).empty());
}
