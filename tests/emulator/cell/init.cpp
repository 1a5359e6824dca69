// The life of process 1; see init.hpp.
//
// One thread, no allocation between vfork and execve. Every command gets a session of its own and a
// *mark*: a hard RLIMIT_MSGQUEUE one lower than nobody else's, which all descendants inherit,
// cannot raise and have no reason to lower. So "the whole tree of this command" can be found in
// /proc whatever sessions, parents and environments its processes gave themselves.
#include "cell/init.hpp"

#include "cell/rootfs.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <sys/wait.h>

#include <cerrno>
#include <csignal>
#include <cstring>
#include <string>
#include <system_error>
#include <unordered_map>

namespace emulator::cell {

namespace {

constexpr rlim_t unlimited_stand_in = rlim_t{1} << 40;

class init_process {
public:
    explicit init_process(int control) : control_(control) {}

    [[noreturn]] void serve();
    void prepare();
    void tell(report_kind kind, std::uint32_t exec, std::int32_t value,
              const char* text = "") const;

private:
    void obey();
    void exec(std::uint32_t number, std::vector<unique_fd>& fds);
    void reap();
    void signal_tree(std::uint32_t number, int signal) const;
    void list(int out) const;
    rlim_t mark_of(std::uint32_t number) const { return top_mark_ - 1 - number % (top_mark_ - 1); }

    int control_;
    int signals_ = -1;
    int null_ = -1;
    rlim_t top_mark_ = 0;                               // 0 or 1: the host allows no marks
    std::unordered_map<pid_t, std::uint32_t> commands_; // alive main processes
    std::unordered_map<std::uint32_t, pid_t>
        groups_; // process group of each command; kept after its main process has ended
};

std::string read_small_file(const std::string& path) {
    std::string text;
    unique_fd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
    char buffer[4096];
    for (ssize_t got; fd && (got = ::read(fd.get(), buffer, sizeof buffer)) > 0;)
        text.append(buffer, static_cast<std::size_t>(got));
    return text;
}

// The hard RLIMIT_MSGQUEUE of a process, from /proc because prlimit(2) needs the same user ids. 0 =
// gone.
rlim_t read_mark(const char* pid) {
    const std::string text = read_small_file(std::string("/proc/") + pid + "/limits");
    constexpr std::string_view label = "Max msgqueue size";
    const auto at = text.find(label);
    if (at == text.npos) return 0;
    unsigned long long soft = 0, hard = 0;
    return std::sscanf(text.c_str() + at + label.size(), "%llu %llu", &soft, &hard) == 2 ? hard : 0;
}

template <class Visit>
void each_process(Visit visit) {
    DIR* proc = ::opendir("/proc");
    if (!proc) return;
    while (const dirent* entry = ::readdir(proc))
        if (entry->d_name[0] >= '1' && entry->d_name[0] <= '9' &&
            std::strcmp(entry->d_name, "1") != 0)
            visit(entry->d_name);
    ::closedir(proc);
}

// The character after the name in /proc/PID/stat. 'Z' and 'X' are dead.
char state_of(const std::string& stat) {
    const auto end = stat.rfind(')');
    return end != stat.npos && end + 2 < stat.size() ? stat[end + 2] : 'X';
}

void init_process::prepare() {
    rlimit limit{};
    ::getrlimit(RLIMIT_MSGQUEUE, &limit);
    top_mark_ = limit.rlim_max == RLIM_INFINITY ? unlimited_stand_in : limit.rlim_max;

    null_ = ::open("/dev/null", O_RDWR | O_CLOEXEC);
    for (int fd = 0; fd < 3; ++fd)
        ::dup2(null_, fd);
    sigset_t child;
    sigemptyset(&child);
    sigaddset(&child, SIGCHLD);
    ::sigprocmask(SIG_SETMASK, &child, nullptr);
    signals_ = ::signalfd(-1, &child, SFD_CLOEXEC | SFD_NONBLOCK);
}

void init_process::tell(report_kind kind, std::uint32_t exec, std::int32_t value,
                        const char* text) const {
    report message{};
    message.kind = kind;
    message.exec = exec;
    message.value = value;
    std::strncpy(message.text, text, sizeof message.text - 1);
    send_message(control_, &message, sizeof message, {});
}

void init_process::serve() {
    for (;;) {
        pollfd waits[2] = {{control_, POLLIN, 0}, {signals_, POLLIN, 0}};
        if (::poll(waits, 2, -1) < 0 && errno != EINTR) ::_exit(1);
        if (waits[1].revents) {
            signalfd_siginfo info;
            while (::read(signals_, &info, sizeof info) > 0) {
            }
            reap();
        }
        if (waits[0].revents) obey();
    }
}

void init_process::obey() {
    order what{};
    std::vector<unique_fd> fds;
    if (receive_message(control_, &what, sizeof what, fds) != sizeof what)
        ::_exit(0); // the emulator is gone; the kernel kills whoever is left in here
    switch (what.kind) {
    case order_kind::exec:
        exec(what.exec, fds);
        break;
    case order_kind::signal_group:
        if (const auto group = groups_.find(what.exec); group != groups_.end())
            ::kill(-group->second, what.signal);
        break;
    case order_kind::signal_tree:
        signal_tree(what.exec, what.signal);
        break;
    case order_kind::list:
        if (!fds.empty()) list(fds[0].get());
        tell(report_kind::listed, what.exec, 0);
        break;
    }
}

// execvp without its fallback to a shell, which no platform's exec has.
int try_execute(const char* file, char* const* argv, char* const* env,
                const std::vector<std::string>& candidates) {
    if (std::strchr(file, '/')) {
        ::execve(file, argv, env);
        return errno;
    }
    int best = ENOENT;
    for (const auto& candidate : candidates) {
        ::execve(candidate.c_str(), argv, env);
        if (errno == EACCES)
            best = EACCES;
        else if (errno != ENOENT && errno != ENOTDIR)
            return errno;
    }
    return best;
}

std::vector<std::string> search_path(const exec_spec& spec) {
    std::vector<std::string> candidates;
    for (const auto& variable : spec.env) {
        if (variable.compare(0, 5, "PATH=") != 0) continue;
        std::string_view rest = std::string_view(variable).substr(5);
        while (!rest.empty()) {
            const auto end = rest.find(':');
            candidates.push_back(std::string(rest.substr(0, end)) + "/" + spec.argv[0]);
            rest.remove_prefix(end == rest.npos ? rest.size() : end + 1);
        }
    }
    return candidates;
}

std::vector<char*> pointers(std::vector<std::string>& strings) {
    std::vector<char*> list;
    for (auto& text : strings)
        list.push_back(text.data());
    list.push_back(nullptr);
    return list;
}

void init_process::exec(std::uint32_t number, std::vector<unique_fd>& fds) {
    if (fds.size() != 3) return tell(report_kind::refused, number, EMFILE);
    std::string bytes;
    struct stat status {};
    ::fstat(fds[0].get(), &status);
    bytes.resize(static_cast<std::size_t>(status.st_size));
    if (::pread(fds[0].get(), bytes.data(), bytes.size(), 0) != status.st_size)
        return tell(report_kind::refused, number, EIO);
    exec_spec spec = decode_exec_spec(bytes);
    const auto candidates = search_path(spec);
    const auto argv = pointers(spec.argv), env = pointers(spec.env);
    const int out = fds[1].get(), err = fds[2].get(), null = null_;
    const char* const cwd = spec.cwd.c_str();
    const rlimit mark{mark_of(top_mark_ > 1 ? number : 0), mark_of(top_mark_ > 1 ? number : 0)};
    const bool marked = top_mark_ > 1;
    volatile int failure = 0; // the child borrows our memory until it executes

    const pid_t pid = ::vfork();
    if (pid == 0) {
        ::setsid();
        if (marked) ::setrlimit(RLIMIT_MSGQUEUE, &mark);
        sigset_t none;
        sigemptyset(&none);
        ::sigprocmask(SIG_SETMASK, &none, nullptr);
        ::dup2(null, 0);
        ::dup2(out, 1);
        ::dup2(err, 2);
        ::close_range(3, ~0U, 0);
        if (::chdir(cwd) != 0)
            failure = errno;
        else
            failure = try_execute(argv[0], argv.data(), env.data(), candidates);
        ::_exit(127);
    }
    if (pid < 0) return tell(report_kind::refused, number, errno);
    if (failure != 0) {
        ::waitpid(pid, nullptr, 0);
        return tell(report_kind::refused, number, failure);
    }
    commands_[pid] = number;
    groups_[number] = pid;
    tell(report_kind::started, number, pid);
}

void init_process::reap() {
    int status = 0;
    for (pid_t pid; (pid = ::waitpid(-1, &status, WNOHANG)) > 0;) {
        const auto command = commands_.find(pid);
        if (command == commands_.end()) continue;
        const auto number = command->second;
        commands_.erase(command);
        // A group whose number might be taken by strangers one day must not be signalled then.
        if (::kill(-pid, 0) != 0) groups_.erase(number);
        tell(report_kind::exited, number, status);
    }
}

// Repeats until a whole pass finds nobody: processes may fork while we look.
void init_process::signal_tree(std::uint32_t number, int signal) const {
    if (top_mark_ <= 1) {
        if (const auto group = groups_.find(number); group != groups_.end())
            ::kill(-group->second, signal);
        return;
    }
    const rlim_t mark = mark_of(number);
    for (int pass = 0; pass < 100; ++pass) {
        bool found = false;
        each_process([&](const char* name) {
            if (read_mark(name) != mark ||
                state_of(read_small_file(std::string("/proc/") + name + "/stat")) == 'Z')
                return;
            found = true;
            ::kill(std::atoi(name), signal);
        });
        if (!found || signal != SIGKILL) return;
    }
}

// One line a live process: pid, parent, process group, number of the command it descends from (or
// -), command line with spaces.
void init_process::list(int out) const {
    std::string text;
    each_process([&](const char* name) {
        const std::string base = std::string("/proc/") + name;
        const std::string stat = read_small_file(base + "/stat");
        const char state = state_of(stat);
        if (stat.empty() || state == 'Z' || state == 'X') return;
        int parent = 0, group = 0;
        char ignored = 0;
        std::sscanf(stat.c_str() + stat.rfind(')') + 1, " %c %d %d", &ignored, &parent, &group);
        const rlim_t mark = read_mark(name);
        std::string command = read_small_file(base + "/cmdline");
        for (char& c : command)
            if (c == '\0' || c == '\n') c = ' ';
        if (command.size() > 512) command.resize(512);
        text += std::string(name) + " " + std::to_string(parent) + " " + std::to_string(group) +
                " " +
                (top_mark_ > 1 && mark < top_mark_ ? std::to_string(top_mark_ - 1 - mark) : "-") +
                " " + command + "\n";
    });
    for (std::size_t done = 0; done < text.size();) {
        const ssize_t wrote = ::write(out, text.data() + done, text.size() - done);
        if (wrote <= 0) return;
        done += static_cast<std::size_t>(wrote);
    }
}

void write_map(const char* path, const std::string& text) {
    unique_fd fd(::open(path, O_WRONLY | O_CLOEXEC));
    if (!fd || ::write(fd.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size()))
        throw std::system_error(errno, std::generic_category(), path);
}

} // namespace

void run_init(int control, const launch_order& how, bool privileged, unsigned outer_uid,
              unsigned outer_gid) {
    init_process init(control);
    try {
        for (int signal = 1; signal < NSIG; ++signal)
            ::signal(signal, SIG_DFL); // what the emulator ignores must not be ignored by commands
        ::setsid();
        if (!privileged) {
            write_map("/proc/self/setgroups", "deny");
            write_map("/proc/self/uid_map", "0 " + std::to_string(outer_uid) + " 1");
            write_map("/proc/self/gid_map", "0 " + std::to_string(outer_gid) + " 1");
        }
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::umask(022);
        enter_root(how, privileged);
        if (::sethostname(how.hostname, std::strlen(how.hostname)) != 0)
            throw std::system_error(errno, std::generic_category(), "sethostname");
        bring_loopback_up();
        drop_capabilities();
        ::prctl(PR_SET_NAME, "sandbox-init");
        init.prepare();
        ::prctl(PR_SET_DUMPABLE, 0); // commands must not reach the control socket through /proc/1
    } catch (const std::system_error& error) {
        init.tell(report_kind::failed, 0, error.code().value(), error.what());
        ::_exit(1);
    }
    init.tell(report_kind::ready, 0, 0);
    init.serve();
}

} // namespace emulator::cell
