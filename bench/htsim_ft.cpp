// Workload FT on htsim, for docs/results/speed.md: long TCP NewReno flows of a permutation on a fat-tree.
//
// It is the workload of `sluicenet bench ft` and bench/ft.toml: k^3/4 hosts, links of 10 Gb/s and 1 us, a drop-tail
// queue of 100,000 B at each port of a switch or host, two-level routing, an initial window of ten segments, a
// smallest timeout of 10 ms. Flow s starts s * 100 ns after the first. htsim writes nothing.
//
// Build it with csg-htsim (https://github.com/Broadcom/csg-htsim) at commit 841d9e7, in its folder HTSIM:
//
//     make -C HTSIM/sim libhtsim.a CFLAGS="-w -std=c++11 -O3 -march=native"
//     g++ -O3 -march=native -I HTSIM/sim bench/htsim_ft.cpp HTSIM/sim/libhtsim.a -o htsim_ft
//
// Run it with the ports of a switch, the file of the flows and simulated milliseconds. A line of the file is
// `source destination`, one for each host:
//
//     htsim_ft 4 stride-4 400
//
// It prints packet_hops (packets that a queue has sent), cpu_s of the events, mhops_per_cpu_s, goodput_gbps (payload
// of 1,460 B in a packet of 1,500 B that arrived in order) and drops.

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <fstream>
#include <vector>

#include "config.h"
#include "eventlist.h"
#include "network.h"
#include "pipe.h"
#include "queue.h"
#include "route.h"
#include "tcp.h"

namespace {

constexpr uint64_t LINK_MBPS = 10'000;
constexpr double LINK_DELAY_US = 1.0;
constexpr int QUEUE_BYTES = 100'000;
constexpr int PACKET_BYTES = 1'500;
constexpr int PAYLOAD_BYTES = 1'460;
constexpr int INITIAL_WINDOW = 10 * PACKET_BYTES;
constexpr int LARGEST_WINDOW = 1 << 20;
constexpr double RTO_MIN_MS = 10.0;
constexpr simtime_picosec STAGGER_PS = 100'000;

uint64_t packet_hops = 0;

/// A drop-tail queue that counts the packets that it has sent.
struct CountingQueue : Queue {
    using Queue::Queue;
    void completeService() override {
        packet_hops++;
        Queue::completeService();
    }
};

/// One direction of a link, and the queue before it.
struct Link {
    explicit Link(EventList& events)
        : queue(new CountingQueue(speedFromMbps(LINK_MBPS), QUEUE_BYTES, events, nullptr)),
          pipe(new Pipe(timeFromUs(LINK_DELAY_US), events)) {}
    CountingQueue* queue;
    Pipe* pipe;
};

/// A fat-tree of switches with k ports: three stages of links, each with one link in both directions for a host.
class FatTree {
  public:
    FatTree(int k, EventList& events) : half(k / 2) {
        for (auto* links : {&up, &down}) {
            for (auto& stage : *links) {
                stage.reserve(hosts());
                for (int i = 0; i < hosts(); i++) {
                    stage.emplace_back(events);
                }
            }
        }
    }

    int hosts() const { return 2 * half * half * half; }

    /// The path of two-level routing, which depends on the destination and the source's edge switch.
    Route* route(int from, int to) {
        auto* path = new Route();
        auto pass = [path](Link& link) {
            path->push_back(link.queue);
            path->push_back(link.pipe);
        };
        int from_pod = from / (half * half), from_edge = from / half % half;
        int to_pod = to / (half * half), to_edge = to / half % half;
        pass(up[0][from]);
        if (from_pod != to_pod || from_edge != to_edge) {
            int aggregation = (to % half + from_edge) % half;
            pass(up[1][(from_pod * half + from_edge) * half + aggregation]);
            if (from_pod != to_pod) {
                int core = (to % half + aggregation) % half;
                pass(up[2][(from_pod * half + aggregation) * half + core]);
                pass(down[2][(to_pod * half + aggregation) * half + core]);
            }
            pass(down[1][(to_pod * half + to_edge) * half + aggregation]);
        }
        pass(down[0][to]);
        return path;
    }

    uint64_t drops() const {
        uint64_t sum = 0;
        for (auto* links : {&up, &down}) {
            for (auto& stage : *links) {
                for (auto& link : stage) {
                    sum += link.queue->num_drops();
                }
            }
        }
        return sum;
    }

  private:
    int half;
    /// Between hosts and edge, edge and aggregation, aggregation and core switches.
    std::vector<Link> up[3], down[3];
};

/// The destination of each host, or the end of the program.
std::vector<int> read_flows(const char* file, int hosts) {
    std::vector<int> destination(hosts, -1);
    std::ifstream flows(file);
    int from, to, lines = 0;
    while (flows >> from >> to) {
        if (from < 0 || from >= hosts || to < 0 || to >= hosts || from == to) {
            fprintf(stderr, "htsim_ft: %s: %d %d is no flow among %d hosts\n", file, from, to, hosts);
            exit(2);
        }
        destination[from] = to;
        lines++;
    }
    if (!flows.eof() || lines != hosts) {
        fprintf(stderr, "htsim_ft: %s: a line `source destination` for each of %d hosts is expected\n", file, hosts);
        exit(2);
    }
    return destination;
}

}  // namespace

int main(int argc, char** argv) {
    int k = argc == 4 ? atoi(argv[1]) : 0;
    double ms = argc == 4 ? atof(argv[3]) : 0;
    if (k < 2 || k % 2 != 0 || ms <= 0) {
        fprintf(stderr, "usage: htsim_ft K FLOWS MS\n");
        return 2;
    }
    EventList& events = EventList::getTheEventList();
    EventList::setEndtime(timeFromMs(ms));
    Packet::set_packet_size(PACKET_BYTES);
    FatTree tree(k, events);
    std::vector<int> destination = read_flows(argv[2], tree.hosts());

    TcpRtxTimerScanner timers(timeFromMs(RTO_MIN_MS), events);
    std::vector<TcpSink*> sinks;
    for (int host = 0; host < tree.hosts(); host++) {
        auto* source = new TcpSrc(nullptr, nullptr, events);
        auto* sink = new TcpSink();
        source->_cwnd = INITIAL_WINDOW;
        source->_ssthresh = INT32_MAX;
        source->_maxcwnd = LARGEST_WINDOW;
        timers.registerTcp(*source);
        Route* there = tree.route(host, destination[host]);
        Route* back = tree.route(destination[host], host);
        there->push_back(sink);
        back->push_back(source);
        source->connect(*there, *back, *sink, host * STAGGER_PS);
        sinks.push_back(sink);
    }

    clock_t start = clock();
    while (EventList::doNextEvent()) {
    }
    double cpu_s = double(clock() - start) / CLOCKS_PER_SEC;
    double packets = 0;
    for (auto* sink : sinks) {
        packets += double(sink->_cumulative_ack) / PACKET_BYTES;
    }
    printf("packet_hops=%llu cpu_s=%.3f mhops_per_cpu_s=%.2f goodput_gbps=%.2f drops=%llu\n",
           (unsigned long long)packet_hops, cpu_s, packet_hops / cpu_s / 1e6, packets * PAYLOAD_BYTES * 8 / ms / 1e6,
           (unsigned long long)tree.drops());
}
