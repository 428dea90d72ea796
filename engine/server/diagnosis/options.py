"""Options of `prep diagnose` that add an input, and the look that each of them is."""

LOG, PROBE, GATEWAY = "--request-log", "--probe", "--gateway"
BASELINE, SERVER_LOG = "--baseline", "--server-log"
LOOKS = {
    BASELINE: "evidence from a healthy time, which --save wrote: what has changed?",
    LOG: "the server's request log: which requests, and do they come again?",
    PROBE: "about ten small requests: what does a client see?",
    GATEWAY: "the gateway's state: do replicas, versions or tenants differ?",
    SERVER_LOG: "the server's output: does one rank take longer than the others?",
}
