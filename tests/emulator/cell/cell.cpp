// Talking to the init of a cell; see cell.hpp.
#include "cell/cell.hpp"

#include <boost/asio/co_spawn.hpp>
#include <boost/asio/detached.hpp>

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <sstream>
#include <system_error>

namespace asio = boost::asio;

namespace emulator::cell {

namespace {

unique_fd memory_file(std::string_view content) {
    unique_fd fd(::memfd_create("order", MFD_CLOEXEC));
    if (!fd || ::pwrite(fd.get(), content.data(), content.size(), 0) !=
                   static_cast<ssize_t>(content.size()))
        throw std::system_error(errno, std::generic_category(), "memfd");
    return fd;
}

void copy_path(char* to, std::size_t room, const std::string& path) {
    if (path.size() >= room) throw boot_error("path too long: " + path);
    std::memcpy(to, path.c_str(), path.size() + 1);
}

} // namespace

task<std::shared_ptr<cell>> cell::boot(asio::any_io_executor executor, launcher& by, options how) {
    launch_order order{};
    order.scratch_mb = how.scratch_mb;
    copy_path(order.workspace, sizeof order.workspace, how.workspace);
    copy_path(order.staging, sizeof order.staging, how.staging);
    copy_path(order.hostname, sizeof order.hostname, how.hostname);
    int pair[2];
    if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, pair) != 0)
        throw boot_error(std::string("socketpair: ") + std::strerror(errno));
    unique_fd ours(pair[0]), theirs(pair[1]);
    auto birth = co_await by.launch(order, std::move(theirs));
    if (birth.pid == 0)
        throw boot_error(
            std::string(
                "cannot make namespaces (that takes root, or unprivileged user namespaces): ") +
            std::strerror(birth.error));
    auto made = std::make_shared<cell>(executor, std::move(ours), std::move(birth.pidfd));
    asio::co_spawn(
        executor, [made]() -> task<void> { co_await made->listen(); }, asio::detached);
    asio::co_spawn(
        executor, [made]() -> task<void> { co_await made->await_end(); }, asio::detached);
    while (!made->ready_ && !made->ended_ && made->failure_.empty())
        co_await made->changed_.wait();
    if (!made->ready_) {
        made->kill();
        throw boot_error(made->failure_.empty() ? "the init died while booting" : made->failure_);
    }
    co_return made;
}

cell::cell(const asio::any_io_executor& executor, unique_fd control, unique_fd pidfd)
    : control_(executor, control.release()), pidfd_(executor, pidfd.release()), changed_(executor) {
    control_.native_non_blocking(true);
}

std::shared_ptr<command> cell::start(std::uint32_t number, const exec_spec& spec) {
    auto made = std::make_shared<command>(control_.get_executor());
    made->number = number;
    if (ended_) {
        made->lost = true;
        return made;
    }
    int out[2], err[2];
    if (::pipe2(out, O_CLOEXEC) != 0) {
        made->refused = errno;
        return made;
    }
    unique_fd out_read(out[0]), out_write(out[1]);
    if (::pipe2(err, O_CLOEXEC) != 0) {
        made->refused = errno;
        return made;
    }
    unique_fd err_read(err[0]), err_write(err[1]);
    made->out.assign(out_read.release());
    made->err.assign(err_read.release());
    made->out.native_non_blocking(true);
    made->err.native_non_blocking(true);
    std::vector<unique_fd> fds;
    fds.push_back(memory_file(encode(spec)));
    fds.push_back(std::move(out_write));
    fds.push_back(std::move(err_write));
    commands_[number] = made;
    post({order_kind::exec, number, 0}, std::move(fds));
    return made;
}

void cell::signal_group(std::uint32_t number, int signal) {
    post({order_kind::signal_group, number, signal}, {});
}

void cell::signal_tree(std::uint32_t number, int signal) {
    post({order_kind::signal_tree, number, signal}, {});
}

task<std::vector<process_info>> cell::processes() {
    auto self = shared_from_this();
    std::vector<process_info> list;
    if (ended_) co_return list;
    const auto number = next_listing_++;
    auto waiting = std::make_shared<listing>(control_.get_executor());
    listings_[number] = waiting;
    auto memory = memory_file("");
    unique_fd copy(::fcntl(memory.get(), F_DUPFD_CLOEXEC, 0));
    std::vector<unique_fd> fds;
    fds.push_back(std::move(copy));
    post({order_kind::list, number, 0}, std::move(fds));
    while (!waiting->ready)
        co_await waiting->done.wait();
    std::string text;
    char buffer[65536];
    for (ssize_t got;
         (got = ::pread(memory.get(), buffer, sizeof buffer, static_cast<off_t>(text.size()))) > 0;)
        text.append(buffer, static_cast<std::size_t>(got));
    std::istringstream lines(text);
    for (std::string line; std::getline(lines, line);) {
        std::istringstream words(line);
        process_info info;
        std::string mark;
        words >> info.pid >> info.parent >> info.group >> mark;
        if (mark != "-") info.command = static_cast<std::uint32_t>(std::stoull(mark));
        words.get();
        std::getline(words, info.line);
        list.push_back(std::move(info));
    }
    co_return list;
}

void cell::kill() {
    if (!ended_) ::syscall(SYS_pidfd_send_signal, pidfd_.native_handle(), SIGKILL, nullptr, 0);
}

task<void> cell::gone() {
    auto self = shared_from_this();
    while (!ended_)
        co_await changed_.wait();
}

void cell::post(order what, std::vector<unique_fd> fds) {
    if (ended_) return;
    outbox_.push_back({what, std::move(fds)});
    flush();
}

void cell::flush() {
    while (!outbox_.empty() && !waiting_to_write_) {
        auto& next = outbox_.front();
        std::vector<int> fds;
        for (const auto& fd : next.fds)
            fds.push_back(fd.get());
        if (!send_message(control_.native_handle(), &next.what, sizeof next.what, fds)) {
            if (errno != EAGAIN) return; // dying: the end is on its way
            waiting_to_write_ = true;
            control_.async_wait(control_.wait_write,
                                [self = shared_from_this()](boost::system::error_code) {
                                    self->waiting_to_write_ = false;
                                    self->flush();
                                });
            return;
        }
        outbox_.pop_front();
    }
}

task<void> cell::listen() {
    while (!ended_) {
        boost::system::error_code ec;
        co_await control_.async_wait(control_.wait_read,
                                     asio::redirect_error(asio::use_awaitable, ec));
        if (ec) co_return;
        for (;;) {
            report what{};
            std::vector<unique_fd> fds;
            const auto got = receive_message(control_.native_handle(), &what, sizeof what, fds);
            if (got < 0 && errno == EAGAIN) break;
            if (got != sizeof what) co_return;
            if (what.kind == report_kind::ready || what.kind == report_kind::failed) {
                ready_ = what.kind == report_kind::ready;
                failure_ = ready_ ? "" : what.text;
                changed_.notify();
                continue;
            }
            if (what.kind == report_kind::listed) {
                if (const auto found = listings_.find(what.exec); found != listings_.end()) {
                    found->second->ready = true;
                    found->second->done.notify();
                    listings_.erase(found);
                }
                continue;
            }
            const auto found = commands_.find(what.exec);
            if (found == commands_.end()) continue;
            auto& command = *found->second;
            if (what.kind == report_kind::started)
                command.pid = what.value;
            else if (what.kind == report_kind::refused)
                command.refused = what.value;
            else
                command.status = what.value;
            command.changed.notify();
            if (what.kind != report_kind::started) commands_.erase(found);
        }
    }
}

task<void> cell::await_end() {
    boost::system::error_code ec;
    co_await pidfd_.async_wait(pidfd_.wait_read, asio::redirect_error(asio::use_awaitable, ec));
    end();
}

void cell::end() {
    ended_ = true;
    outbox_.clear();
    control_.close();
    for (auto& [number, command] : commands_) {
        command->lost = true;
        command->changed.notify();
    }
    commands_.clear();
    for (auto& [number, waiting] : listings_) {
        waiting->ready = true;
        waiting->done.notify();
    }
    listings_.clear();
    changed_.notify();
}

} // namespace emulator::cell
