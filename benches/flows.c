/* Sends UDP datagrams of many flows in turn, as whole frames, as fast as one CPU can. Each carries the marker and number by which
   `partywall trace` recognises it. Flows differ in port and address of the sender.

   flows INTERFACE SOURCE-MAC DESTINATION-MAC
   Each line "FLOWS PACKETS" of the standard input is answered by "sent" when that many packets were sent. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <endian.h>
#include <errno.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <net/if.h>
#include <netinet/ether.h>
#include <netinet/ip.h>
#include <netinet/udp.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

enum { BATCH = 64, PORTS = 50000, FIRST_PORT = 10000, FIRST_SENDER = 0x0a4f000a, RECEIVER = 0x0a4f0002, PORT = 9000 };

struct frame {
	struct ethhdr link;
	struct iphdr ip;
	struct udphdr udp;
	char magic[8];
	uint64_t number;
	char rest[48];
} __attribute__((packed));

static void fail(const char *what)
{
	perror(what);
	exit(1);
}

/* RFC 1071. */
static uint16_t sum_of(const void *bytes, size_t count)
{
	const uint8_t *at = bytes;
	uint32_t sum = 0;

	for (size_t i = 0; i < count; i += 2)
		sum += at[i] | at[i + 1] << 8;
	sum = (sum & 0xffff) + (sum >> 16);
	return ~(sum + (sum >> 16));
}

static void make(struct frame *frame, const char *source, const char *destination)
{
	memset(frame, 0, sizeof(*frame));
	memcpy(frame->link.h_source, ether_aton(source), ETH_ALEN);
	memcpy(frame->link.h_dest, ether_aton(destination), ETH_ALEN);
	frame->link.h_proto = htons(ETH_P_IP);
	frame->ip.version = 4;
	frame->ip.ihl = 5;
	frame->ip.ttl = 64;
	frame->ip.protocol = IPPROTO_UDP;
	frame->ip.tot_len = htons(sizeof(*frame) - sizeof(frame->link));
	frame->ip.frag_off = htons(IP_DF);
	frame->ip.daddr = htonl(RECEIVER);
	frame->udp.dest = htons(PORT);
	frame->udp.len = htons(sizeof(*frame) - sizeof(frame->link) - sizeof(frame->ip));
	memcpy(frame->magic, "PWALLTAG", sizeof(frame->magic));
}

static void number(struct frame *frame, uint64_t packet, uint64_t flow)
{
	frame->ip.saddr = htonl(FIRST_SENDER + flow / PORTS);
	frame->ip.check = 0;
	frame->ip.check = sum_of(&frame->ip, sizeof(frame->ip));
	frame->udp.source = htons(FIRST_PORT + flow % PORTS);
	frame->number = htobe64(packet);
}

int main(int count, char **arguments)
{
	static struct frame frames[BATCH];
	static struct iovec parts[BATCH];
	static struct mmsghdr messages[BATCH];
	uint64_t flows, packets, flow = 0, packet = 0;
	struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_protocol = htons(ETH_P_IP)};
	int out = socket(AF_PACKET, SOCK_RAW, 0);

	if (count != 4)
		return 2;
	to.sll_ifindex = if_nametoindex(arguments[1]);
	if (out < 0 || !to.sll_ifindex || bind(out, (void *)&to, sizeof(to)) < 0)
		fail(arguments[1]);
	for (int i = 0; i < BATCH; i++) {
		make(&frames[i], arguments[2], arguments[3]);
		parts[i] = (struct iovec){&frames[i], sizeof(frames[i])};
		messages[i].msg_hdr = (struct msghdr){.msg_iov = &parts[i], .msg_iovlen = 1};
	}
	while (scanf("%lu %lu", &flows, &packets) == 2) {
		for (uint64_t left = packets; left;) {
			int due = left < BATCH ? left : BATCH, sent;

			for (int i = 0; i < due; i++)
				number(&frames[i], packet + i, (flow + i) % flows);
			sent = sendmmsg(out, messages, due, 0);
			if (sent < 0) {
				if (errno != ENOBUFS)
					fail("sendmmsg");
				continue;
			}
			left -= sent;
			packet += sent;
			flow = (flow + sent) % flows;
		}
		puts("sent");
		fflush(stdout);
	}
	return 0;
}
