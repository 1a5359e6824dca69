#include "sync/manifest.hpp"

#include <algorithm>
#include <charconv>
#include <utility>

namespace sandboxd::sync {
namespace {

constexpr std::string_view first_line = "deepinfra-sandboxd manifest 2";
constexpr std::int64_t second = 1'000'000'000;
constexpr std::int64_t finest_tick = 20'000'000; // coarser than any kernel's timer tick

// Fields are separated by blanks and lines by newlines; the bytes that would be mistaken for those
// go as %XX.
void add_text(std::string& to, std::string_view bytes) {
    static constexpr char digits[] = "0123456789ABCDEF";
    for (const char c : bytes) {
        const auto byte = static_cast<unsigned char>(c);
        if (byte <= ' ' || c == '%' || byte == 0x7f) {
            to += {'%', digits[byte >> 4], digits[byte & 15]};
        } else {
            to += c;
        }
    }
}

template <class Number>
void add_number(std::string& to, Number number) {
    char text[24];
    to.append(text, std::to_chars(text, text + sizeof text, number).ptr);
    to += ' ';
}

class line_reader {
public:
    explicit line_reader(std::string_view line) : rest_(line) {}

    std::string_view word() {
        const std::size_t end = std::min(rest_.find(' '), rest_.size());
        const std::string_view found = rest_.substr(0, end);
        rest_.remove_prefix(std::min(end + 1, rest_.size()));
        return found;
    }
    template <class Number>
    Number number(int base = 10) {
        const std::string_view text = word();
        Number value{};
        const auto [end, error] =
            std::from_chars(text.data(), text.data() + text.size(), value, base);
        good_ = good_ && error == std::errc{} && end == text.data() + text.size();
        return value;
    }
    std::string text() {
        const std::string_view word_ = word();
        std::string out;
        out.reserve(word_.size());
        for (std::size_t i = 0; i < word_.size(); ++i) {
            unsigned byte = 0;
            if (word_[i] == '%') {
                const char* from = word_.data() + i + 1;
                const bool fits = i + 2 < word_.size();
                good_ = good_ && fits && std::from_chars(from, from + 2, byte, 16).ptr == from + 2;
                if (!good_) return {};
                out += static_cast<char>(byte);
                i += 2;
            } else {
                out += word_[i];
            }
        }
        return out;
    }
    bool finished() const { return good_ && rest_.empty(); }

private:
    std::string_view rest_;
    bool good_ = true;
};

bool take_entry(line_reader& line, char kind, manifest& into) {
    manifest_entry entry;
    entry.kind = static_cast<file_kind>(kind);
    entry.mode = line.number<unsigned>(8);
    entry.print.size = line.number<std::uint64_t>();
    entry.print.mtime = line.number<std::int64_t>();
    entry.print.ctime = line.number<std::int64_t>();
    entry.print.inode = line.number<std::uint64_t>();
    const std::string_view trust = line.word();
    entry.doubtful = trust == "?";
    entry.unsettled = trust == "!";
    entry.digest = line.text();
    std::string path = line.text();
    if (!line.finished() || path.empty()) return false;
    into.entries.insert_or_assign(std::move(path), std::move(entry));
    return true;
}

} // namespace

verdict compare(const manifest_entry* known, const local_entry& now) {
    if (known == nullptr || known->unsettled || known->kind != now.kind ||
        known->mode != now.mode) {
        return verdict::changed;
    }
    if (now.kind == file_kind::directory) return verdict::unchanged;
    if (known->print.size != now.print.size) return verdict::changed;
    return known->print == now.print && !known->doubtful ? verdict::unchanged : verdict::look;
}

bool is_doubtful(const file_print& print, std::int64_t read_at) {
    const std::int64_t last = std::max(print.mtime, print.ctime);
    return last > read_at - (last % second == 0 ? 2 * second : finest_tick);
}

const manifest_entry* manifest::find(const std::string& path) const {
    const auto found = entries.find(path);
    return found == entries.end() ? nullptr : &found->second;
}

void manifest::forget(const std::string& path) {
    entries.erase(path);
    forget_below(path);
}

// What is below a path stands together in the order of bytes, behind what begins with smaller ones.
void manifest::forget_below(const std::string& path) {
    const std::string prefix = path + "/";
    auto it = entries.lower_bound(prefix);
    while (it != entries.end() && it->first.starts_with(prefix))
        it = entries.erase(it);
}

bool manifest::unsettle(const std::string& path) {
    const auto found = entries.find(path);
    bool any = found != entries.end();
    if (any) found->second.unsettled = true;
    const std::string prefix = path + "/";
    auto it = entries.lower_bound(prefix);
    for (; it != entries.end() && it->first.starts_with(prefix); ++it) {
        it->second.unsettled = true;
        any = true;
    }
    return any;
}

std::map<std::string, std::string> manifest::contents_below(const std::string& path) const {
    std::map<std::string, std::string> out;
    const std::string prefix = path + "/";
    auto it = entries.lower_bound(prefix);
    for (; it != entries.end() && it->first.starts_with(prefix); ++it) {
        const manifest_entry& each = it->second;
        if (each.kind == file_kind::file && !each.unsettled) out.emplace(it->first, each.digest);
    }
    return out;
}

std::string format_manifest(const manifest& what) {
    std::string text(first_line);
    text += "\nsandbox ";
    add_text(text, what.sandbox);
    text += '\n';
    for (const auto& [path, entry] : what.entries) {
        text += static_cast<char>(entry.kind);
        text += ' ';
        char mode[12];
        text.append(mode, std::to_chars(mode, mode + sizeof mode, entry.mode, 8).ptr);
        text += ' ';
        add_number(text, entry.print.size);
        add_number(text, entry.print.mtime);
        add_number(text, entry.print.ctime);
        add_number(text, entry.print.inode);
        text += entry.unsettled ? "! " : entry.doubtful ? "? " : "= ";
        text += entry.digest;
        text += ' ';
        add_text(text, path);
        text += '\n';
    }
    text += "end\n";
    return text;
}

std::optional<manifest> parse_manifest(std::string_view text) {
    manifest out;
    bool ended = false;
    for (std::size_t number = 0; !text.empty(); ++number) {
        const std::size_t end = text.find('\n');
        if (end == std::string_view::npos || ended) return std::nullopt;
        const std::string_view line = text.substr(0, end);
        text.remove_prefix(end + 1);
        line_reader in(line);
        if (number == 0) {
            if (line != first_line) return std::nullopt;
            continue;
        }
        const std::string_view what = in.word();
        if (what == "sandbox") {
            out.sandbox = in.text();
            if (!in.finished()) return std::nullopt;
        } else if (what == "f" || what == "d" || what == "l") {
            if (!take_entry(in, what.front(), out)) return std::nullopt;
        } else if (what == "end") {
            ended = true;
        } else {
            return std::nullopt;
        }
    }
    if (!ended) return std::nullopt;
    return out;
}

} // namespace sandboxd::sync
