//! What the papers' tables and figures show, and where our figures for them come from.

use super::{From, Line, Paper, Pick, Spot};
use crate::bench::plan::Test;

const fn row(name: &'static str, spot: Spot, times: f64) -> Pick {
    Pick { name, from: From::Row(spot), times }
}

/// Policies of rows that were measured while others wanted the cores.
const BUSY_BLOCKING: &str = "blocking, burner";
const BUSY_PARK: &str = "park, burner";

/// Our latency through shared memory.
const fn shm_latency(times: f64) -> Pick {
    row("Tautline, shm", (Test::Latency, "tautline", "shm", "spin", 8), times)
}

/// Our latency over UDP.
const fn udp_latency(times: f64) -> Pick {
    row("Tautline, UDP", (Test::Latency, "tautline", "udp", "spin", 8), times)
}

/// Ways to move a buffer.
const fn copies(bytes: usize) -> [Pick; 6] {
    [
        row("memcpy", (Test::Copies, "memcpy", "shm", "polled", bytes), 1e3),
        row("non-temporal stores", (Test::Copies, "non-temporal", "shm", "polled", bytes), 1e3),
        row("through a slot", (Test::Copies, "slot", "shm", "polled", bytes), 1e3),
        row("process_vm_readv", (Test::Copies, "readv", "shm", "polled", bytes), 1e3),
        row("pinned on demand", (Test::Copies, "pinned", "shm", "polled", bytes), 1e3),
        row("lent", (Test::Copies, "loans", "shm", "spin", bytes), 1e3),
    ]
}

/// A variant of TCP beside ours, between hosts.
const fn variant(name: &'static str, test: Test, system: &'static str, bytes: usize) -> Pick {
    let ours = (test, "tautline", "udp", "park", bytes);
    let theirs = (test, system, "tcp", "blocking", bytes);
    Pick { name, from: From::Share(theirs, ours, Some(1500)), times: 1.0 }
}

/// A layer above messages, in percent of them.
const fn layer(name: &'static str, system: &'static str, device: &'static str) -> Pick {
    let bytes = 64 << 10;
    let messages = (Test::Bandwidth, "tautline", device, "spin", bytes);
    let from = From::Share((Test::Bandwidth, system, device, "spin", bytes), messages, None);
    Pick { name, from, times: 100.0 }
}

const fn calls(name: &'static str, device: &'static str) -> Pick {
    let messages = (Test::Latency, "tautline", device, "spin", 64);
    let from = From::OfRoundTrips((Test::Calls, "rpc", device, "spin", 64), messages);
    Pick { name, from, times: 100.0 }
}

const fn counted(name: &'static str, frame: &'static str, less: Option<&'static str>) -> Pick {
    Pick { name, from: From::Counted(frame, less), times: 1.0 }
}

const fn flood(
    name: &'static str,
    system: &'static str,
    device: &'static str,
    policy: &'static str,
    junk: usize,
) -> Pick {
    row(name, (Test::Flood, system, device, policy, junk), 1.0)
}

const fn cost(
    name: &'static str,
    system: &'static str,
    device: &'static str,
    policy: &'static str,
    junk: usize,
) -> Pick {
    Pick { name, from: From::Mean((Test::Flood, system, device, policy, junk)), times: 1.0 }
}

const fn far(name: &'static str, spot: Spot, mtu: u16, times: f64) -> Pick {
    Pick { name, from: From::Far(spot, mtu), times }
}

const fn lost(name: &'static str, system: &'static str, per_mille: usize) -> Pick {
    row(name, (Test::Loss, system, "udp", "spin", per_mille), 1.0)
}

const PAPER_000: Paper = Paper {
    number: "000",
    title: "High performance cluster messaging over Gigabit Ethernet (a proposal)",
    words: "latency,bandwidth,cpu,loss,flood,8,64,64K,tcp,tautline,tautline-go-back-n,xdp",
    lines: &[
        Line {
            what: "messages among 0, 4 and 16 foreign datagrams for each (2.2)",
            theirs: "livelock",
            unit: "k/s",
            ours: &[
                flood("TCP, 0", "tcp", "tcp", "blocking", 0),
                flood("TCP, 4", "tcp", "tcp", "blocking", 4),
                flood("TCP, 16", "tcp", "tcp", "blocking", 16),
                flood("Tautline, UDP, 0", "tautline", "udp", "park", 0),
                flood("Tautline, UDP, 4", "tautline", "udp", "park", 4),
                flood("Tautline, UDP, 16", "tautline", "udp", "park", 16),
            ],
        },
        Line {
            what: "CPU time of the receiver for each of them",
            theirs: "–",
            unit: "µs",
            ours: &[
                cost("TCP, 0", "tcp", "tcp", "blocking", 0),
                cost("TCP, 16", "tcp", "tcp", "blocking", 16),
                cost("Tautline, UDP, 0", "tautline", "udp", "park", 0),
                cost("Tautline, UDP, 16", "tautline", "udp", "park", 16),
            ],
        },
        Line {
            what: "what keeps one core busy, 64 KiB, both sides together (2.2)",
            theirs: "< 600",
            unit: "Mbit/s",
            ours: &[
                Pick {
                    name: "TCP",
                    from: From::PerCore((Test::Cpu, "tcp", "tcp", "blocking", 64 << 10)),
                    times: 8e3,
                },
                Pick {
                    name: "Tautline, UDP",
                    from: From::PerCore((Test::Cpu, "tautline", "udp", "park", 64 << 10)),
                    times: 8e3,
                },
            ],
        },
        Line {
            what: "frames of 1,500 and of 9,000 B, streams of 64 KiB (2.3)",
            theirs: "–",
            unit: "GB/s",
            ours: &[
                far("TCP, 1,500", (Test::Bandwidth, "tcp", "tcp", "blocking", 64 << 10), 1500, 1.0),
                far("TCP, 9,000", (Test::Bandwidth, "tcp", "tcp", "blocking", 64 << 10), 9000, 1.0),
                far("Tautline, 1,500", (Test::Bandwidth, "tautline", "udp", "spin", 64 << 10), 1500, 1.0),
                far("Tautline, 9,000", (Test::Bandwidth, "tautline", "udp", "spin", 64 << 10), 9000, 1.0),
            ],
        },
        Line {
            what: "one-way latency of 8 B between hosts, through the kernel and past it (2.4)",
            theirs: "–",
            unit: "µs",
            ours: &[
                far("TCP", (Test::Latency, "tcp", "tcp", "blocking", 8), 1500, 1.0),
                far("Tautline, UDP", (Test::Latency, "tautline", "udp", "spin", 8), 1500, 1.0),
                far("Tautline, AF_XDP", (Test::Latency, "tautline", "xdp", "spin", 8), 1500, 1.0),
            ],
        },
        Line {
            what: "a reliable protocol where 0, 1, 10 and 50 frames of 1,000 are lost (3)",
            theirs: "–",
            unit: "GB/s",
            ours: &[
                lost("selective repeat, 0", "tautline", 0),
                lost("selective repeat, 1", "tautline", 1),
                lost("selective repeat, 10", "tautline", 10),
                lost("selective repeat, 50", "tautline", 50),
                lost("go-back-n, 0", "tautline-go-back-n", 0),
                lost("go-back-n, 1", "tautline-go-back-n", 1),
                lost("go-back-n, 10", "tautline-go-back-n", 10),
                lost("go-back-n, 50", "tautline-go-back-n", 50),
            ],
        },
    ],
};

pub(super) const PAPERS: [Paper; 5] = [
    PAPER_000,
    Paper {
        number: "001",
        title: "User-level network interface protocols (Myrinet)",
        words: "bandwidth,latency,copies,8,256,1K,64K,tautline,memcpy,non-temporal,slot,readv,pinned,loans",
        lines: &[
            Line {
                what: "throughput, packets of 256 B",
                theirs: "32",
                unit: "MB/s",
                ours: &[
                    row("Tautline, UDP", (Test::Bandwidth, "tautline", "udp", "spin", 256), 1e3),
                    row("Tautline, shm", (Test::Bandwidth, "tautline", "shm", "spin", 256), 1e3),
                ],
            },
            Line {
                what: "throughput, packets of 1,024 B",
                theirs: "43",
                unit: "MB/s",
                ours: &[
                    row("Tautline, UDP", (Test::Bandwidth, "tautline", "udp", "spin", 1 << 10), 1e3),
                    row("Tautline, shm", (Test::Bandwidth, "tautline", "shm", "spin", 1 << 10), 1e3),
                ],
            },
            Line {
                what: "one-way latency of the simple protocol (BIP: 4)",
                theirs: "12",
                unit: "µs",
                ours: &[shm_latency(1.0), udp_latency(1.0)],
            },
            Line {
                what: "a copy of 1 KiB, by kind (Fig. 2)",
                theirs: "plot",
                unit: "MB/s",
                ours: &copies(1 << 10),
            },
            Line { what: "a copy of 64 KiB, by kind", theirs: "plot", unit: "MB/s", ours: &copies(64 << 10) },
        ],
    },
    Paper {
        number: "002",
        title: "Tripwire: a synchronisation primitive for virtual memory mapped communication (CLAN)",
        words: "latency,bandwidth,endpoints,clients,polls,8,64,256,1K,4K,64K,1M,put,put-one,put-early,mapped,queue,stream,server,server-asleep,semaphores,tcp,tautline",
        lines: &[
            Line {
                what: "round trip of a word, stored (5.2)",
                theirs: "3.7",
                unit: "µs",
                ours: &[row("mapped, shm", (Test::Latency, "mapped", "shm", "spin", 8), 2.0)],
            },
            Line {
                what: "round trip of a word, put",
                theirs: "3.7",
                unit: "µs",
                ours: &[
                    row("put, shm", (Test::Latency, "put", "shm", "spin", 8), 2.0),
                    row("put, UDP", (Test::Latency, "put", "udp", "spin", 8), 2.0),
                ],
            },
            Line {
                what: "peak bandwidth (Fig. 7)",
                theirs: "910",
                unit: "Mbit/s",
                ours: &[
                    Pick { name: "put, shm", from: From::Peak(Test::Bandwidth, "put", "shm"), times: 8e3 },
                    Pick {
                        name: "mapped, shm",
                        from: From::Peak(Test::Bandwidth, "mapped", "shm"),
                        times: 8e3,
                    },
                    Pick { name: "put, UDP", from: From::Peak(Test::Bandwidth, "put", "udp"), times: 8e3 },
                ],
            },
            Line {
                what: "a wake-up: sleeping less polling receiver (5.1)",
                theirs: "8 + 3",
                unit: "µs",
                ours: &[
                    Pick {
                        name: "Tautline, shm",
                        from: From::Less(
                            (Test::Latency, "tautline", "shm", "park", 8),
                            (Test::Latency, "tautline", "shm", "spin", 8),
                        ),
                        times: 1.0,
                    },
                    Pick {
                        name: "Tautline, UDP",
                        from: From::Less(
                            (Test::Latency, "tautline", "udp", "park", 8),
                            (Test::Latency, "tautline", "udp", "spin", 8),
                        ),
                        times: 1.0,
                    },
                    Pick {
                        name: "a semaphore less a cache line",
                        from: From::Less(
                            (Test::Latency, "semaphores", "semaphores", "blocking", 8),
                            (Test::Latency, "line", "shm", "polled", 8),
                        ),
                        times: 1.0,
                    },
                ],
            },
            Line {
                what: "a put of 64 KiB, read when complete, and as it arrives (4.3)",
                theirs: "–",
                unit: "µs",
                ours: &[
                    row("complete, shm", (Test::Latency, "put", "shm", "spin", 64 << 10), 1.0),
                    row("as it arrives, shm", (Test::Latency, "put-early", "shm", "spin", 64 << 10), 1.0),
                    row("complete, UDP", (Test::Latency, "put", "udp", "spin", 64 << 10), 1.0),
                    row("as it arrives, UDP", (Test::Latency, "put-early", "udp", "spin", 64 << 10), 1.0),
                ],
            },
            Line {
                what: "one-way latency of the distributed queue, and of a stream",
                theirs: "–",
                unit: "µs",
                ours: &[
                    row("queue, shm", (Test::Latency, "queue", "shm", "spin", 8), 1.0),
                    row("stream, shm", (Test::Latency, "stream", "shm", "spin", 8), 1.0),
                    row("queue, UDP", (Test::Latency, "queue", "udp", "spin", 8), 1.0),
                    row("stream, UDP", (Test::Latency, "stream", "udp", "spin", 8), 1.0),
                ],
            },
            Line {
                what: "response of a sleeping server (5.3.1)",
                theirs: "16.8",
                unit: "µs",
                ours: &[
                    row("shm", (Test::Endpoints, "server-asleep", "shm", "spin-then-park", 1), 1.0),
                    row("UDP", (Test::Endpoints, "server-asleep", "udp", "spin-then-park", 1), 1.0),
                ],
            },
            Line {
                what: "response of a busy server",
                theirs: "7.9",
                unit: "µs",
                ours: &[
                    row("shm", (Test::Endpoints, "server", "shm", "spin-then-park", 1), 1.0),
                    row("UDP", (Test::Endpoints, "server", "udp", "spin-then-park", 1), 1.0),
                ],
            },
            Line {
                what: "requests of a loaded server (Fig. 9)",
                theirs: "340",
                unit: "k/s",
                ours: &[
                    Pick { name: "shm", from: From::Peak(Test::Clients, "server", "shm"), times: 1.0 },
                    Pick { name: "UDP", from: From::Peak(Test::Clients, "server", "udp"), times: 1.0 },
                ],
            },
            Line {
                what: "one put in flight, acknowledged, 64 KiB (Fig. 10a)",
                theirs: "plot",
                unit: "Mbit/s",
                ours: &[
                    row("shm", (Test::Bandwidth, "put-one", "shm", "spin", 64 << 10), 8e3),
                    row("UDP", (Test::Bandwidth, "put-one", "udp", "spin", 64 << 10), 8e3),
                ],
            },
            Line {
                what: "a poll that finds nothing, and one that finds a message",
                theirs: "–",
                unit: "ns",
                ours: &[
                    row("miss, shm", (Test::Polls, "tautline", "shm", "spin", 0), 1.0),
                    row("hit, shm", (Test::Polls, "tautline", "shm", "spin", 1), 1.0),
                    row("miss, UDP (in the kernel)", (Test::Polls, "tautline", "udp", "spin", 0), 1.0),
                ],
            },
            Line {
                what: "round trip over TCP/IP (Table 1: CLAN IP; gigabit Ethernet 260)",
                theirs: "100",
                unit: "µs",
                ours: &[
                    row("TCP, loopback", (Test::Latency, "tcp", "tcp", "blocking", 8), 2.0),
                    udp_latency(2.0),
                ],
            },
        ],
    },
    Paper {
        number: "003",
        title: "Load-balanced and transport-level communication on a Linux cluster",
        words: "latency,bandwidth,cpu,8,64,1K,64K,pipe,fifo,sysv,semaphores,unix,tcp,tcp-nagle,tcp-bare,tcp-bare-nagle,tautline",
        lines: &[
            Line {
                what: "latency of a pipe (Table 3)",
                theirs: "1.95",
                unit: "µs",
                ours: &[row("pipe", (Test::Latency, "pipe", "pipe", "blocking", 8), 1.0)],
            },
            Line {
                what: "latency of a FIFO",
                theirs: "1.99",
                unit: "µs",
                ours: &[row("FIFO", (Test::Latency, "fifo", "fifo", "blocking", 8), 1.0)],
            },
            Line {
                what: "latency of System V messages",
                theirs: "2.02",
                unit: "µs",
                ours: &[row("System V", (Test::Latency, "sysv", "sysv", "blocking", 8), 1.0)],
            },
            Line {
                what: "latency of shared memory with semaphores",
                theirs: "–",
                unit: "µs",
                ours: &[
                    row("semaphores", (Test::Latency, "semaphores", "semaphores", "blocking", 8), 1.0),
                    shm_latency(1.0),
                ],
            },
            Line {
                what: "latency of an Internet socket",
                theirs: "6.9",
                unit: "µs",
                ours: &[row("TCP", (Test::Latency, "tcp", "tcp", "blocking", 8), 1.0), udp_latency(1.0)],
            },
            Line {
                what: "bandwidth of 10,000 B and more (Fig. 8); ours with 64 KiB",
                theirs: "1",
                unit: "GB/s",
                ours: &[
                    row("pipe", (Test::Bandwidth, "pipe", "pipe", "polled", 64 << 10), 1.0),
                    row("FIFO", (Test::Bandwidth, "fifo", "fifo", "polled", 64 << 10), 1.0),
                    row("System V", (Test::Bandwidth, "sysv", "sysv", "blocking", 64 << 10), 1.0),
                    row(
                        "semaphores",
                        (Test::Bandwidth, "semaphores", "semaphores", "blocking", 64 << 10),
                        1.0,
                    ),
                    row("Tautline, shm", (Test::Bandwidth, "tautline", "shm", "spin", 64 << 10), 1.0),
                ],
            },
            Line {
                what: "latency of TCP of 64 B, in multiples of ours (Fig. 11)",
                theirs: "plot",
                unit: "×",
                ours: &[
                    variant("with offloads, no delay", Test::Latency, "tcp", 64),
                    variant("with offloads and Nagle's delay", Test::Latency, "tcp-nagle", 64),
                    variant("without offloads, no delay", Test::Latency, "tcp-bare", 64),
                    variant("without offloads, Nagle's delay", Test::Latency, "tcp-bare-nagle", 64),
                ],
            },
            Line {
                what: "throughput of TCP, 64 B, in multiples of ours (Fig. 12)",
                theirs: "plot",
                unit: "×",
                ours: &[
                    variant("with offloads and Nagle's delay", Test::Bandwidth, "tcp-nagle", 64),
                    variant("without offloads, no delay", Test::Bandwidth, "tcp-bare", 64),
                    variant("without offloads, Nagle's delay", Test::Bandwidth, "tcp-bare-nagle", 64),
                ],
            },
            Line {
                what: "throughput of TCP, 64 KiB, in multiples of ours",
                theirs: "plot",
                unit: "×",
                ours: &[
                    variant("with offloads, no delay", Test::Bandwidth, "tcp", 64 << 10),
                    variant("with offloads and Nagle's delay", Test::Bandwidth, "tcp-nagle", 64 << 10),
                    variant("without offloads, no delay", Test::Bandwidth, "tcp-bare", 64 << 10),
                    variant("without offloads, Nagle's delay", Test::Bandwidth, "tcp-bare-nagle", 64 << 10),
                ],
            },
            Line {
                what: "CPU time of TCP for 64 KiB, in multiples of ours (Fig. 13)",
                theirs: "plot",
                unit: "×",
                ours: &[Pick {
                    name: "TCP",
                    from: From::Share(
                        (Test::Cpu, "tcp", "tcp", "blocking", 64 << 10),
                        (Test::Cpu, "tautline", "udp", "park", 64 << 10),
                        None,
                    ),
                    times: 1.0,
                }],
            },
            Line {
                what: "bandwidth of 64 KiB while others want the cores (Table 4)",
                theirs: "–",
                unit: "GB/s",
                ours: &[
                    row("TCP", (Test::Bandwidth, "tcp", "tcp", BUSY_BLOCKING, 64 << 10), 1.0),
                    row("Tautline, UDP", (Test::Bandwidth, "tautline", "udp", BUSY_PARK, 64 << 10), 1.0),
                ],
            },
        ],
    },
    Paper {
        number: "004",
        title: "Efficient layering for high speed communication: Fast Messages 2.x",
        words: "latency,bandwidth,calls,8,64,256,1K,4K,64K,1M,tautline,tautline-scattered,queue,stream,rpc",
        lines: &[
            Line {
                what: "latency, FM 2.1 (Fig. 5)",
                theirs: "11",
                unit: "µs",
                ours: &[shm_latency(1.0), udp_latency(1.0)],
            },
            Line {
                what: "peak bandwidth, FM 2.1",
                theirs: "77",
                unit: "MB/s",
                ours: &[
                    Pick {
                        name: "Tautline, shm",
                        from: From::Peak(Test::Bandwidth, "tautline", "shm"),
                        times: 1e3,
                    },
                    Pick {
                        name: "Tautline, UDP",
                        from: From::Peak(Test::Bandwidth, "tautline", "udp"),
                        times: 1e3,
                    },
                ],
            },
            Line {
                what: "half-power size, FM 2.1",
                theirs: "< 256",
                unit: "B",
                ours: &[
                    Pick {
                        name: "Tautline, shm",
                        from: From::HalfPower("tautline shm fabric spin"),
                        times: 1.0,
                    },
                    Pick { name: "Tautline, UDP", from: From::HalfPower("tautline fabric spin"), times: 1.0 },
                ],
            },
            Line {
                what: "peak of a layer above: MPI-FM 2.0 (Fig. 6); ours is the queue",
                theirs: "70",
                unit: "MB/s",
                ours: &[
                    Pick {
                        name: "queue, shm",
                        from: From::Peak(Test::Bandwidth, "queue", "shm"),
                        times: 1e3,
                    },
                    Pick {
                        name: "queue, UDP",
                        from: From::Peak(Test::Bandwidth, "queue", "udp"),
                        times: 1e3,
                    },
                ],
            },
            Line {
                what: "layers as a share of messages, 64 KiB (Figs. 4 and 6: MPI)",
                theirs: "90",
                unit: "%",
                ours: &[
                    layer("queue, shm", "queue", "shm"),
                    layer("queue, UDP", "queue", "udp"),
                    layer("stream, shm", "stream", "shm"),
                    layer("stream, UDP", "stream", "udp"),
                    layer("scattered receives, shm", "tautline-scattered", "shm"),
                    layer("scattered receives, UDP", "tautline-scattered", "udp"),
                    calls("calls of 64 B, shm", "shm"),
                    calls("calls of 64 B, UDP", "udp"),
                ],
            },
            Line {
                what: "instructions of a frame, by guarantee (Fig. 2: of 397 cycles)",
                theirs: "216",
                unit: "instr.",
                ours: &[
                    counted("order, recovery and flow control", "open", None),
                    counted("+ tag", "fabric", Some("open")),
                    counted("+ cipher", "sealed", Some("fabric")),
                    counted("shared memory", "shm", None),
                ],
            },
        ],
    },
];
