#include "store/key_book.hpp"

#include "sys/fd.hpp"
#include "sys/file.hpp"

#include <boost/json.hpp>

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <utility>

namespace sandboxd::store {
namespace {

namespace json = boost::json;

std::string line_of(const core::sandbox_key& key) {
    return json::serialize(json::object{{"profile", key.profile}, {"task", key.task}}) + "\n";
}

std::optional<core::sandbox_key> key_from(std::string_view line) {
    boost::system::error_code error;
    const json::value root = json::parse(line, error);
    if (error || !root.is_object()) {
        return std::nullopt;
    }
    const json::value* profile = root.get_object().if_contains("profile");
    const json::value* task = root.get_object().if_contains("task");
    if (profile == nullptr || task == nullptr || !profile->is_string() || !task->is_string()) {
        return std::nullopt;
    }
    return core::sandbox_key{std::string(profile->get_string()), std::string(task->get_string())};
}

} // namespace

void key_book::load() {
    std::string text;
    try {
        text = sys::read_file(file_).value_or("");
    } catch (const std::system_error&) {
        return; // a second copy; what is added from now on is tried all the same
    }
    torn_ = !text.empty() && text.back() != '\n';
    std::size_t lines = 0;
    for (std::size_t begin = 0; begin < text.size(); ++lines) {
        const std::size_t end = std::min(text.find('\n', begin), text.size());
        const std::string_view line(text.data() + begin, end - begin);
        if (const std::optional<core::sandbox_key> key = key_from(line)) {
            take(*key, core::key_digest(*key));
        }
        begin = end + 1;
    }
    if (lines > 2 * most) {
        try {
            sys::atomic_write(file_, whole());
            torn_ = false;
        } catch (const std::system_error&) {
            // as it was, then
        }
    }
}

void key_book::add(const core::sandbox_key& key) {
    std::string digest = core::key_digest(key);
    if (keys_.contains(digest)) {
        return;
    }
    if (append(line_of(key))) {
        take(key, std::move(digest));
    }
}

std::optional<core::sandbox_key> key_book::find(std::string_view digest) const {
    const auto found = keys_.find(digest);
    return found == keys_.end() ? std::nullopt : std::optional(found->second);
}

void key_book::take(const core::sandbox_key& key, std::string digest) {
    if (!keys_.emplace(digest, key).second) {
        return;
    }
    order_.push_back(std::move(digest));
    if (order_.size() > most) {
        keys_.erase(order_.front());
        order_.pop_front();
    }
}

bool key_book::append(const std::string& line) {
    const sys::unique_fd fd(
        ::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC | O_NOFOLLOW, 0600));
    if (!fd) {
        return false;
    }
    const std::string text = (torn_ ? "\n" : "") + line;
    torn_ = ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size());
    return !torn_;
}

std::string key_book::whole() const {
    std::string text;
    for (const std::string& digest : order_) {
        text += line_of(keys_.find(digest)->second);
    }
    return text;
}

} // namespace sandboxd::store
