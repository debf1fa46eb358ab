/*
 * The only process of a guest that serves pages: it loads the kernel's modules, sets the network up, and answers every
 * HTTP request after a stated amount of computing. A page is the guest's boot identifier, so that a guest that was
 * started again is known. Once a second it writes a counter to its disk, so that a guest that lost its disk is known.
 *
 * Kernel arguments after "--": --address A.B.C.D, --work STEPS. Built as a static executable; it is /init.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <net/if.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/reboot.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <time.h>
#include <unistd.h>

enum { CONNECTIONS = 256, PORT = 80 };
static volatile uint64_t computed = 1;

static void fail(const char *what) {
    fprintf(stderr, "web: %s: %s\n", what, strerror(errno));
    sleep(1);
    reboot(RB_POWER_OFF);
}

static void load_modules(void) {
    char name[128], path[160];
    FILE *order = fopen("/lib/modules/order", "r");
    while (order && fscanf(order, "%127s", name) == 1) {
        snprintf(path, sizeof path, "/lib/modules/%s", name);
        int file = open(path, O_RDONLY);
        if (file < 0 || (syscall(SYS_finit_module, file, "", 0) && errno != EEXIST)) fprintf(stderr, "web: %s: %s\n", name, strerror(errno));
        close(file);
    }
}

static void network(const char *address) {
    struct ifreq request = {0};
    struct sockaddr_in *own = (struct sockaddr_in *)&request.ifr_addr;
    int control = socket(AF_INET, SOCK_DGRAM, 0);
    strcpy(request.ifr_name, "eth0");
    own->sin_family = AF_INET;
    if (!inet_aton(address, &own->sin_addr)) fail("--address");
    for (int tries = 0; ioctl(control, SIOCSIFADDR, &request); usleep(20000))
        if (++tries > 500) fail("the address of eth0");
    inet_aton("255.255.255.0", &own->sin_addr);
    if (ioctl(control, SIOCSIFNETMASK, &request)) fail("the netmask of eth0");
    request.ifr_flags = IFF_UP | IFF_RUNNING;
    if (ioctl(control, SIOCSIFFLAGS, &request)) fail("eth0 up");
}

static void answer(int connection, const char *boot, long steps) {
    char request[4096], page[256];
    ssize_t length = read(connection, request, sizeof request);
    if (length <= 0) {
        errno = 0;
        close(connection);
        return;
    }
    for (long step = 0; step < steps; step++) computed = computed * 6364136223846793005u + 1442695040888963407u;
    int size = snprintf(page, sizeof page, "HTTP/1.1 200 OK\r\nContent-Length: %zu\r\nContent-Type: text/plain\r\n\r\n%s", strlen(boot), boot);
    if (write(connection, page, size) < 0) close(connection);
}

static void count(int disk, uint64_t *counter) {
    static char block[4096] __attribute__((aligned(4096)));
    static time_t last;
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    if (disk < 0 || now.tv_sec == last) return;
    last = now.tv_sec;
    snprintf(block, sizeof block, "%llu\n", (unsigned long long)++*counter);
    if (pwrite(disk, block, sizeof block, 0) != (ssize_t)sizeof block) fail("the disk");
}

int main(int argc, char **argv) {
    const char *address = "";
    char boot[64] = "";
    long steps = 0;
    uint64_t counter = 0;
    for (int i = 1; i + 1 < argc; i += 2) {
        if (!strcmp(argv[i], "--address")) address = argv[i + 1];
        if (!strcmp(argv[i], "--work")) steps = atol(argv[i + 1]);
    }
    mount("proc", "/proc", "proc", 0, "");
    mount("dev", "/dev", "devtmpfs", 0, "");
    load_modules();
    network(address);
    FILE *random = fopen("/proc/sys/kernel/random/boot_id", "r");
    if (!random || !fgets(boot, sizeof boot, random)) fail("the boot identifier");
    fclose(random);
    int disk = open("/dev/vda", O_RDWR | O_DIRECT | O_SYNC);
    struct pollfd polled[CONNECTIONS + 1] = {{.fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK, 0), .events = POLLIN}};
    struct sockaddr_in any = {.sin_family = AF_INET, .sin_port = htons(PORT)};
    int yes = 1, open_count = 1;
    setsockopt(polled[0].fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof yes);
    if (bind(polled[0].fd, (struct sockaddr *)&any, sizeof any) || listen(polled[0].fd, 128)) fail("port 80");
    fprintf(stderr, "web: serving\n");
    for (;;) {
        poll(polled, open_count, 500);
        count(disk, &counter);
        for (int i = open_count - 1; i > 0; i--) {
            if (!polled[i].revents) continue;
            answer(polled[i].fd, boot, steps);
            if (fcntl(polled[i].fd, F_GETFD) < 0) polled[i] = polled[--open_count];
        }
        while (open_count <= CONNECTIONS) {
            int connection = accept4(polled[0].fd, NULL, NULL, SOCK_CLOEXEC);
            if (connection < 0) break;
            setsockopt(connection, IPPROTO_TCP, TCP_NODELAY, &yes, sizeof yes);
            polled[open_count++] = (struct pollfd){.fd = connection, .events = POLLIN};
        }
    }
}
