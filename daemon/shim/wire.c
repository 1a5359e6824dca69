// What shim processes say to each other over the id's socket.
//
// The socket's name is abstract: no file that `rm` could take away, and it ends with its process.
// It is made of the pid namespace's inode, because abstract names belong to the network namespace,
// which several sandboxes may share, and of a hash of the id, which may be longer than a socket's
// name. The full id travels in every request. Only the same user is spoken with.
#include "shim.h"

#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static uint64_t fnv1a(const char* s, uint64_t hash) {
    for (; *s; ++s)
        hash = (hash ^ (unsigned char)*s) * 0x100000001b3u;
    return hash;
}

size_t wire_prefix(char* to, size_t room) {
    struct text name = {to, 0, room};
    put(&name, "@deepinfra-shim/1/");
    put_hex(&name, facts_pidns);
    put_char(&name, '/');
    return name.n;
}

static socklen_t socket_name(const char* id, struct sockaddr_un* address) {
    memset(address, 0, sizeof *address);
    address->sun_family = AF_UNIX;
    struct text name = {address->sun_path, 0, sizeof address->sun_path};
    name.n = wire_prefix(address->sun_path, sizeof address->sun_path);
    address->sun_path[0] = '\0';
    put_hex(&name, fnv1a(id, 0xcbf29ce484222325u));
    put_hex(&name, fnv1a(id, 0x9e3779b97f4a7c15u));
    return (socklen_t)(offsetof(struct sockaddr_un, sun_path) + name.n);
}

static int open_socket(int* fd) {
    *fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    return *fd < 0 ? errno : 0;
}

int wire_listen(const char* id, int* fd) {
    struct sockaddr_un address;
    const socklen_t length = socket_name(id, &address);
    int error = open_socket(fd);
    if (error) return error;
    if (bind(*fd, (struct sockaddr*)&address, length) == 0 && listen(*fd, 64) == 0) return 0;
    error = errno;
    close(*fd);
    *fd = -1;
    return error;
}

bool wire_peer_allowed(int fd) {
    struct ucred peer;
    socklen_t length = sizeof peer;
    if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &length) != 0) return false;
    return peer.uid == geteuid();
}

static int connect_to(const struct sockaddr_un* address, socklen_t length, int* fd) {
    int error = open_socket(fd);
    if (error) return error;
    if (connect(*fd, (const struct sockaddr*)address, length) != 0)
        error = errno;
    else if (!wire_peer_allowed(*fd))
        error = EPERM;
    if (error) {
        close(*fd);
        *fd = -1;
    }
    return error;
}

int wire_connect(const char* id, int* fd) {
    struct sockaddr_un address;
    const socklen_t length = socket_name(id, &address);
    return connect_to(&address, length, fd);
}

int wire_connect_name(const char* name, size_t length, int* fd) {
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (length == 0 || length > sizeof address.sun_path) return ENAMETOOLONG;
    memcpy(address.sun_path, name, length);
    address.sun_path[0] = '\0';
    return connect_to(&address, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + length), fd);
}

int wire_send(int sock, enum wire_type type, const uint64_t* v, unsigned count, uint32_t flags,
              const void* payload, size_t n, int fd) {
    struct wire head = {
        .magic = WIRE_MAGIC, .version = WIRE_VERSION, .type = (uint16_t)type, .flags = flags};
    if (type == wire_refused) head.error = (int32_t)flags;
    for (unsigned i = 0; i < count; ++i)
        head.v[i] = v[i];
    struct iovec parts[2] = {{&head, sizeof head}, {(void*)payload, n}};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr message = {.msg_iov = parts, .msg_iovlen = n ? 2 : 1};
    if (fd >= 0) {
        message.msg_control = control.space;
        message.msg_controllen = sizeof control.space;
        struct cmsghdr* header = CMSG_FIRSTHDR(&message);
        header->cmsg_level = SOL_SOCKET;
        header->cmsg_type = SCM_RIGHTS;
        header->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(header), &fd, sizeof fd);
    }
    for (;;) {
        if (sendmsg(sock, &message, MSG_NOSIGNAL) >= 0) return 0;
        if (errno != EINTR) return errno;
    }
}

int wire_request(int sock, enum wire_type type, const uint64_t* v, unsigned count, const char* id,
                 const char* digest, int fd) {
    char payload[SHIM_ID_MAX + SHIM_DIGEST_MAX + 2];
    const size_t a = strlen(id) + 1, b = strlen(digest) + 1;
    memcpy(payload, id, a);
    memcpy(payload + a, digest, b);
    return wire_send(sock, type, v, count, 0, payload, a + b, fd);
}

int wire_receive(int sock, struct wire* head, void* payload, size_t room, size_t* n, int* fd) {
    struct iovec parts[2] = {{head, sizeof *head}, {payload, room}};
    union {
        struct cmsghdr align;
        char space[CMSG_SPACE(sizeof(int))];
    } control;
    struct msghdr message = {.msg_iov = parts,
                             .msg_iovlen = 2,
                             .msg_control = control.space,
                             .msg_controllen = CMSG_LEN(sizeof(int))}; // not one more
    *fd = -1;
    ssize_t got;
    // Where the other side has closed with something of ours unread, that comes first, and then
    // its last words.
    bool reset = false;
    for (;;) {
        got = recvmsg(sock, &message, MSG_CMSG_CLOEXEC);
        if (got >= 0) break;
        if (errno == ECONNRESET && !reset)
            reset = true;
        else if (errno != EINTR)
            return errno == ECONNRESET ? EPIPE : errno;
    }
    for (struct cmsghdr* header = CMSG_FIRSTHDR(&message); header;
         header = CMSG_NXTHDR(&message, header))
        if (header->cmsg_level == SOL_SOCKET && header->cmsg_type == SCM_RIGHTS)
            memcpy(fd, CMSG_DATA(header), sizeof *fd);
    if (got == 0) return EPIPE;
    if ((size_t)got < sizeof *head || head->magic != WIRE_MAGIC ||
        (message.msg_flags & MSG_TRUNC)) {
        if (*fd >= 0) close(*fd);
        *fd = -1;
        return EPROTO;
    }
    *n = (size_t)got - sizeof *head;
    return head->version == WIRE_VERSION ? 0 : EPROTONOSUPPORT;
}
