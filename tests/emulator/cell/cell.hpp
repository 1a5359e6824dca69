// The inside of one running sandbox, as the emulator holds it.
//
// Lives from boot() until the init is dead. A sandbox owns its cell; the commands share it while
// they run. When the cell ends, for whatever reason, every process inside is dead first, then all
// commands are marked `lost`.
#pragma once

#include "cell/launcher.hpp"

#include <boost/asio/posix/stream_descriptor.hpp>

#include <deque>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>

namespace emulator::cell {

struct boot_error : std::runtime_error {
    using std::runtime_error::runtime_error;
};

// A command inside a cell. `changed` is notified whenever one of the other members has changed.
struct command {
    explicit command(const boost::asio::any_io_executor& executor)
        : changed(executor), out(executor), err(executor) {}

    std::uint32_t number = 0;
    event changed;
    boost::asio::posix::stream_descriptor out, err; // read ends, non-blocking
    int pid = 0;                                    // inside the cell; 0 until started
    int refused = 0;                                // errno of execve; nothing ran
    std::optional<int> status;                      // wait status of the main process
    bool lost = false;                              // the cell has ended
    bool settled() const { return pid != 0 || refused != 0 || lost; }
};

struct process_info {
    int pid = 0, parent = 0, group = 0;
    std::optional<std::uint32_t> command; // number of the command it descends from, where known
    std::string line;                     // command line, NULs replaced by spaces
};

class cell : public std::enable_shared_from_this<cell> {
public:
    struct options {
        std::filesystem::path workspace, staging;
        std::string hostname;
        std::uint64_t scratch_mb = 1024;
    };
    // Throws boot_error.
    static task<std::shared_ptr<cell>> boot(boost::asio::any_io_executor executor, launcher& by,
                                            options how);

    cell(const boost::asio::any_io_executor& executor, unique_fd control, unique_fd pidfd);

    // Never fails here: a command that cannot be started is told as `refused` or `lost`.
    std::shared_ptr<command> start(std::uint32_t number, const exec_spec& spec);
    void signal_group(std::uint32_t number, int signal);
    // The main process and everything that descends from it, whatever session it is in.
    void signal_tree(std::uint32_t number, int signal);
    task<std::vector<process_info>> processes();

    void kill();       // SIGKILL to the init, which takes everything along
    task<void> gone(); // until nothing is left
    bool ended() const { return ended_; }

private:
    struct letter {
        order what;
        std::vector<unique_fd> fds;
    };
    struct listing {
        explicit listing(const boost::asio::any_io_executor& executor) : done(executor) {}
        event done;
        bool ready = false;
    };

    void post(order what, std::vector<unique_fd> fds);
    void flush();
    task<void> listen();
    task<void> await_end();
    void end();

    boost::asio::posix::stream_descriptor control_, pidfd_;
    std::deque<letter> outbox_;
    bool waiting_to_write_ = false;
    bool ended_ = false, ready_ = false;
    std::string failure_;
    event changed_;
    std::unordered_map<std::uint32_t, std::shared_ptr<command>> commands_;
    std::unordered_map<std::uint32_t, std::shared_ptr<listing>> listings_;
    std::uint32_t next_listing_ = 1;
};

} // namespace emulator::cell
