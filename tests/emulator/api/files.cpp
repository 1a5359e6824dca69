// GET and PUT fs/content: one file under /workspace.
//
// The path is walked component by component with descriptors, as the sandbox would see it: symbolic
// links are followed by hand, absolute ones from the sandbox's root, so that neither "..", nor a
// link, nor a race between the two leads out of /workspace.
#include "api/call.hpp"

#include "unique_fd.hpp"

#include <boost/json.hpp>

#include <fcntl.h>
#include <sys/stat.h>

#include <array>
#include <cerrno>
#include <cstring>
#include <deque>

namespace json = boost::json;

namespace emulator::api {

namespace {

constexpr std::size_t part_size = 64 * 1024;
constexpr int most_links = 40;

struct place {
    unique_fd parent;
    std::string name;
};

[[noreturn]] void outside() {
    throw cloud::api_error{
        400, "ERR_PATH_OUTSIDE_WORKSPACE: only paths under /workspace can be accessed"};
}

[[noreturn]] void refuse_errno(const std::string& path) {
    switch (errno) {
    case ENOENT:
    case ENOTDIR:
        throw cloud::api_error{404, "File not found: " + path};
    case EISDIR:
    case ELOOP:
    case ENAMETOOLONG:
    case EEXIST:
    case ENXIO:
        throw cloud::api_error{400, std::string(std::strerror(errno)) + ": " + path};
    default:
        throw cloud::api_error{500, std::string(std::strerror(errno)) + ": " + path};
    }
}

void push_front(std::deque<std::string>& pending, std::string_view path) {
    std::deque<std::string> parts;
    while (!path.empty()) {
        const auto end = path.find('/');
        if (const auto part = path.substr(0, end); !part.empty() && part != ".")
            parts.emplace_back(part);
        path.remove_prefix(end == path.npos ? path.size() : end + 1);
    }
    pending.insert(pending.begin(), parts.begin(), parts.end());
}

class walk {
public:
    walk(const std::filesystem::path& workspace, const std::string& path, bool make_parents)
        : workspace_(workspace), path_(path), make_parents_(make_parents) {}

    place find() {
        if (path_.empty() || path_[0] != '/') outside();
        push_front(pending_, path_);
        while (!pending_.empty()) {
            const std::string name = std::move(pending_.front());
            pending_.pop_front();
            if (name == "..") {
                if (!inside_.empty()) inside_.pop_back();
            } else if (inside_.empty())
                enter_workspace(name);
            else if (follow_link(name))
                continue;
            else if (pending_.empty() && path_.back() != '/')
                return {std::move(inside_.back()), name};
            else
                enter(name);
        }
        if (inside_.empty()) outside();
        errno = EISDIR;
        refuse_errno(path_);
    }

private:
    void enter_workspace(const std::string& name) {
        if (name != "workspace") outside();
        push(::open(workspace_.c_str(), O_PATH | O_DIRECTORY | O_CLOEXEC));
    }

    bool follow_link(const std::string& name) {
        std::array<char, 4096> to{};
        const ssize_t size = ::readlinkat(inside_.back().get(), name.c_str(), to.data(), to.size());
        if (size < 0) return false;
        if (++links_ > most_links) {
            errno = ELOOP;
            refuse_errno(path_);
        }
        const std::string_view link(to.data(), static_cast<std::size_t>(size));
        if (link.starts_with('/')) inside_.clear();
        push_front(pending_, link);
        return true;
    }

    void enter(const std::string& name) {
        if (make_parents_) ::mkdirat(inside_.back().get(), name.c_str(), 0755);
        push(::openat(inside_.back().get(), name.c_str(),
                      O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    }

    void push(int fd) {
        if (fd < 0) refuse_errno(path_);
        inside_.emplace_back(fd);
    }

    const std::filesystem::path& workspace_;
    const std::string& path_;
    bool make_parents_;
    std::deque<std::string> pending_;
    std::vector<unique_fd> inside_; // from /workspace downwards; empty: at the sandbox's root
    int links_ = 0;
};

cloud::sandbox_ptr sandbox_of(const call& c) {
    auto which = c.all.platform->find(c.account, c.where.sandbox_id);
    if (which->now == cloud::state::deleted)
        throw cloud::api_error{std::stoi(c.all.settings.deleted_call_status), "Sandbox is deleted"};
    if (which->now != cloud::state::running && c.all.settings.fs_when_not_running != "allow")
        throw cloud::api_error{
            409, "Sandbox is not running (state: " + std::string(cloud::name_of(which->now)) + ")"};
    return which;
}

std::string path_of(const call& c) {
    const auto found = c.where.query.find("path");
    if (found == c.where.query.end() || found->second.empty()) c.refuse("path is missing");
    if (found->second.find('\0') != std::string::npos) c.refuse("path must not hold NUL bytes");
    return found->second;
}

void require_regular(int fd, const std::string& path, struct stat& status) {
    if (::fstat(fd, &status) != 0) refuse_errno(path);
    if (S_ISREG(status.st_mode)) return;
    errno = EISDIR;
    refuse_errno(path);
}

void write_all(int fd, const char* data, std::size_t size, const std::string& path) {
    while (size > 0) {
        const ssize_t wrote = ::write(fd, data, size);
        if (wrote < 0) refuse_errno(path);
        data += wrote;
        size -= static_cast<std::size_t>(wrote);
    }
}

// A new file gets the configured mode whatever the umask; an old one keeps its own.
unique_fd open_for_writing(const place& at, const std::string& name, mode_t mode,
                           const std::string& path) {
    constexpr int flags = O_WRONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC;
    unique_fd fd(::openat(at.parent.get(), name.c_str(), flags | O_CREAT | O_EXCL, 0600));
    if (fd) {
        ::fchmod(fd.get(), mode);
        return fd;
    }
    if (errno == EEXIST) fd.reset(::openat(at.parent.get(), name.c_str(), flags));
    if (!fd) refuse_errno(path);
    struct stat status {};
    require_regular(fd.get(), path, status);
    if (::ftruncate(fd.get(), 0) != 0) refuse_errno(path);
    return fd;
}

} // namespace

task<void> serve_put_file(call& c) {
    const auto which = sandbox_of(c);
    const call_in_flight flight(*c.all.platform, which);
    const auto& settings = c.all.settings;
    const auto limit = static_cast<std::uint64_t>(settings.file_limit_bytes);
    const cloud::api_error too_large{413,
                                     "File is larger than " + std::to_string(limit) + " bytes"};
    const std::string path = path_of(c);
    if (c.connection.content_length().value_or(0) > limit) throw too_large;
    const auto workspace = which->workspace();
    const place at = walk(workspace, path, true).find();
    const auto mode = static_cast<mode_t>(std::stoul(settings.put_mode, nullptr, 8));
    const bool beside = settings.put_replace == "rename";
    const std::string name = beside ? ".put-" + std::to_string(c.record.number) : at.name;
    const unique_fd file = open_for_writing(at, name, mode, path);

    std::vector<char> part(part_size);
    std::uint64_t total = 0;
    bool complete = false;
    try {
        for (;;) {
            const std::size_t got = co_await c.connection.read_body(part.data(), part.size());
            if (got == 0) break;
            total += got;
            c.record.body_bytes = total;
            if (total > limit) throw too_large;
            write_all(file.get(), part.data(), got, path);
        }
        complete = true;
    } catch (...) {
        if (beside) ::unlinkat(at.parent.get(), name.c_str(), 0);
        throw;
    }
    if (complete && beside &&
        ::renameat(at.parent.get(), name.c_str(), at.parent.get(), at.name.c_str()) != 0) {
        ::unlinkat(at.parent.get(), name.c_str(), 0);
        refuse_errno(path);
    }
    const json::object nothing;
    co_await c.reply_json(nothing);
}

task<void> serve_get_file(call& c) {
    const auto which = sandbox_of(c);
    const call_in_flight flight(*c.all.platform, which);
    const std::string path = path_of(c);
    const auto workspace = which->workspace();
    const place at = walk(workspace, path, false).find();
    const unique_fd file(
        ::openat(at.parent.get(), at.name.c_str(), O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC));
    if (!file) refuse_errno(path);
    struct stat status {};
    require_regular(file.get(), path, status);
    if (status.st_size > c.all.settings.file_limit_bytes)
        throw cloud::api_error{413, "File is larger than " +
                                        std::to_string(c.all.settings.file_limit_bytes) + " bytes"};
    auto left = static_cast<std::uint64_t>(status.st_size);
    co_await c.answer.begin(200, "application/octet-stream", left);
    std::vector<char> part(part_size);
    while (left > 0) {
        const ssize_t got =
            ::read(file.get(), part.data(), std::min<std::uint64_t>(left, part.size()));
        if (got <= 0) { // it shrank: the promise of a length is broken
            c.connection.abort(false);
            throw http::connection_lost();
        }
        left -= static_cast<std::uint64_t>(got);
        co_await c.answer.body(std::string_view(part.data(), static_cast<std::size_t>(got)));
    }
    co_await c.answer.end();
}

} // namespace emulator::api
