#include "store/exec_journal.hpp"

#include "store/exec_format.hpp"
#include "sys/file.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <map>
#include <string_view>
#include <system_error>

namespace sandboxd::store {
namespace {

constexpr std::size_t small = 1U << 20;     // bytes: below it, nothing is worth the trouble
constexpr std::size_t usual_record = 1'024; // bytes: more than most take

} // namespace

exec_journal::exec_journal(const std::filesystem::path& directory)
    : file_(directory / "execs.journal") {}

exec_journal::~exec_journal() {
    if (fd_ >= 0) {
        ::close(fd_);
    }
}

std::vector<core::exec_record> exec_journal::load() {
    std::vector<core::exec_record> records;
    std::map<std::string, std::size_t> places;
    std::string text;
    try {
        text = sys::read_file(file_, std::size_t{256} << 20).value_or("");
    } catch (const std::system_error& problem) {
        trouble_ = problem.what();
    }
    std::string_view rest = text;
    for (std::size_t end = rest.find('\n'); end != std::string_view::npos; end = rest.find('\n')) {
        std::optional<core::exec_record> record = parse_exec_record(rest.substr(0, end));
        rest.remove_prefix(end + 1);
        if (!record) {
            continue;
        }
        const auto [place, fresh] = places.emplace(record->exec_id, records.size());
        if (fresh) {
            records.push_back(std::move(*record));
        } else {
            records[place->second] = std::move(*record);
        }
    }
    return records;
}

void exec_journal::open() {
    if (fd_ >= 0) {
        return;
    }
    fd_ = ::open(file_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (fd_ < 0) {
        throw std::system_error(errno, std::generic_category(), file_.string());
    }
    size_ = static_cast<std::size_t>(std::max<off_t>(::lseek(fd_, 0, SEEK_END), 0));
}

void exec_journal::write(const std::string& text) {
    std::string_view rest = text;
    while (!rest.empty()) {
        const ssize_t written = ::write(fd_, rest.data(), rest.size());
        if (written < 0) {
            if (errno == EINTR) {
                continue;
            }
            throw std::system_error(errno, std::generic_category(), file_.string());
        }
        rest.remove_prefix(static_cast<std::size_t>(written));
        size_ += static_cast<std::size_t>(written);
    }
}

void exec_journal::append(const core::exec_record& record) {
    try {
        open();
        // After a write that was cut short, a newline keeps the torn line from swallowing this one.
        write((trouble_.empty() ? "" : "\n") + format_exec_record(record) + "\n");
        trouble_.clear();
    } catch (const std::system_error& problem) {
        trouble_ = problem.what();
    }
}

bool exec_journal::overgrown(std::size_t records) const noexcept {
    return size_ > small && size_ > 2 * records * usual_record;
}

void exec_journal::rewrite(const std::vector<core::exec_record>& records) {
    const std::filesystem::path fresh = file_.string() + ".tmp";
    try {
        if (fd_ >= 0) {
            ::close(fd_);
        }
        fd_ = ::open(fresh.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
        if (fd_ < 0) {
            throw std::system_error(errno, std::generic_category(), fresh.string());
        }
        size_ = 0;
        std::string text;
        for (const core::exec_record& each : records) {
            text += format_exec_record(each);
            text += '\n';
        }
        write(text);
        if (::rename(fresh.c_str(), file_.c_str()) != 0) {
            throw std::system_error(errno, std::generic_category(), file_.string());
        }
        trouble_.clear();
    } catch (const std::system_error& problem) {
        trouble_ = problem.what();
        ::unlink(fresh.c_str());
    }
    if (fd_ >= 0) {
        ::close(fd_);
        fd_ = -1; // the next append opens whichever file is there now
    }
}

} // namespace sandboxd::store
