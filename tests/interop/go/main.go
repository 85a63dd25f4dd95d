// Streams a bucket with gocbcore's DCP agent, from the beginning, and says in JSON lines what came.
//
// To write: writes documents with every level of durability, and says how that ended.
//
// To drain: for each line of standard input streams all that is there now, and says what it cost.
//
// To ping: only asks what go-dcp asks before it streams, and says the answers.
//
// To now: ends by itself with a line per vbucket. To infinity: takes orders from standard input,
// "await vbucket:uuid:seqno ...", and ends with it. The password comes from DRIVER_PASSWORD.
package main

import (
	"bufio"
	"crypto/x509"
	"flag"
	"fmt"
	"log"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

const patience = 60 * time.Second

type options struct {
	seeds       string
	httpSeeds   bool
	bucket      string
	user        string
	tlsCA       string
	to          string
	windowBytes int
	collections bool
}

func main() {
	given := options{}
	flag.StringVar(&given.seeds, "seeds", "", "host:port,...")
	flag.BoolVar(&given.httpSeeds, "http-seeds", false, "the seeds are ports of HTTP")
	flag.StringVar(&given.bucket, "bucket", "default", "")
	flag.StringVar(&given.user, "user", "", "")
	flag.StringVar(&given.tlsCA, "tls-ca", "", "PEM file; encrypts, and signs in with PLAIN")
	flag.StringVar(&given.to, "to", "now", "ping, write, drain, now or infinity")
	flag.IntVar(&given.windowBytes, "window-bytes", 65536, "flow control")
	flag.BoolVar(&given.collections, "collections", true, "")
	flag.Parse()
	gocbcore.SetLogger(gocbcore.DefaultStdioLogger())
	if err := run(given); err != nil {
		log.Fatal(err)
	}
}

func run(given options) error {
	switch given.to {
	case "ping":
		return ping(given)
	case "write":
		return writeDurably(given)
	case "drain":
		return drain(given)
	}
	all, snapshot, err := connect(given, fmt.Sprintf("interop-%d", os.Getpid()))
	if err != nil {
		return err
	}
	defer func() { _ = all.agent.Close() }()
	if given.to == "now" {
		if err := endNow(all, snapshot); err != nil {
			return err
		}
	}
	for _, each := range all.logs {
		if !each.ended {
			all.open(each.vbucket)
		}
	}
	say(map[string]any{"event": "streaming", "vbuckets": len(all.logs)})
	if given.to != "now" {
		return takeOrders(all)
	}
	all.waitFor(func(logs []*vbucketLog) bool {
		for _, each := range logs {
			if !each.ended {
				return false
			}
		}
		return true
	})
	all.report()
	return nil
}

// connect returns the streams of all vbuckets, none of them open, once the agent is ready.
func connect(given options, name string) (*streams, *gocbcore.ConfigSnapshot, error) {
	config, err := agentConfig(given)
	if err != nil {
		return nil, nil, err
	}
	agent, err := gocbcore.CreateDcpAgent(config, name, memd.DcpOpenFlagIncludeDeleteTimes)
	if err != nil {
		return nil, nil, err
	}
	all, snapshot, err := allStreams(agent)
	if err != nil {
		_ = agent.Close()
	}
	return all, snapshot, err
}

func allStreams(agent *gocbcore.DCPAgent) (*streams, *gocbcore.ConfigSnapshot, error) {
	if err := waitUntilReady(agent); err != nil {
		return nil, nil, err
	}
	snapshot, err := agent.ConfigSnapshot()
	if err != nil {
		return nil, nil, err
	}
	vbuckets, err := snapshot.NumVbuckets()
	if err != nil {
		return nil, nil, err
	}
	return newStreams(agent, vbuckets), snapshot, nil
}

func agentConfig(given options) (*gocbcore.DCPAgentConfig, error) {
	config := &gocbcore.DCPAgentConfig{
		UserAgent:            "dcplake-interop",
		BucketName:           given.bucket,
		IoConfig:             gocbcore.IoConfig{UseCollections: given.collections},
		CompressionConfig:    gocbcore.CompressionConfig{Enabled: true},
		DefaultRetryStrategy: gocbcore.NewBestEffortRetryStrategy(nil),
		ConfigPollerConfig:   gocbcore.ConfigPollerConfig{HTTPRetryDelay: 100 * time.Millisecond},
		DCPConfig: gocbcore.DCPConfig{
			BufferSize:      given.windowBytes,
			UseExpiryOpcode: true,
		},
	}
	seeds := strings.Split(given.seeds, ",")
	if given.httpSeeds {
		config.SeedConfig.HTTPAddrs = seeds
	} else {
		config.SeedConfig.MemdAddrs = seeds
	}
	config.SecurityConfig.Auth = gocbcore.PasswordAuthProvider{
		Username: given.user,
		Password: os.Getenv("DRIVER_PASSWORD"),
	}
	config.SecurityConfig.AuthMechanisms = []gocbcore.AuthMechanism{
		gocbcore.ScramSha512AuthMechanism,
	}
	if given.tlsCA != "" {
		pem, err := os.ReadFile(given.tlsCA)
		if err != nil {
			return nil, err
		}
		pool := x509.NewCertPool()
		if !pool.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("%s: found no certificate", given.tlsCA)
		}
		config.SecurityConfig.UseTLS = true
		config.SecurityConfig.TLSRootCAProvider = func() *x509.CertPool { return pool }
		config.SecurityConfig.AuthMechanisms = []gocbcore.AuthMechanism{
			gocbcore.PlainAuthMechanism,
		}
	}
	return config, nil
}

// connecting is what agents of both kinds do at first.
type connecting interface {
	WaitUntilReady(
		time.Time, gocbcore.WaitUntilReadyOptions, gocbcore.WaitUntilReadyCallback,
	) (gocbcore.PendingOp, error)
}

func waitUntilReady(agent connecting) error {
	options := gocbcore.WaitUntilReadyOptions{
		RetryStrategy: gocbcore.NewBestEffortRetryStrategy(nil),
	}
	return wait(func(done func(error)) (gocbcore.PendingOp, error) {
		return agent.WaitUntilReady(time.Now().Add(patience), options,
			func(_ *gocbcore.WaitUntilReadyResult, err error) { done(err) })
	})
}

// endNow lets every stream end where its vbucket is now; those that are empty have ended.
func endNow(all *streams, snapshot *gocbcore.ConfigSnapshot) error {
	servers, err := snapshot.NumServers()
	if err != nil {
		return err
	}
	for server := 1; server <= servers; server++ { // 0 would ask the node of vbucket 0
		err := wait(func(done func(error)) (gocbcore.PendingOp, error) {
			return all.agent.GetVbucketSeqnos(
				server, memd.VbucketStateActive, gocbcore.GetVbucketSeqnoOptions{},
				func(entries []gocbcore.VbSeqNoEntry, err error) {
					for _, entry := range entries {
						end := uint64(entry.SeqNo)
						all.update(entry.VbID, func(log *vbucketLog) {
							log.end, log.ended = end, end == 0
						})
					}
					done(err)
				})
		})
		if err != nil {
			return err
		}
	}
	return nil
}

func takeOrders(all *streams) error {
	orders := bufio.NewScanner(os.Stdin)
	orders.Buffer(nil, 1<<20)
	for orders.Scan() {
		words := strings.Fields(orders.Text())
		if len(words) == 0 || words[0] != "await" {
			return fmt.Errorf("found the order %q, expected await ...", orders.Text())
		}
		for _, goal := range words[1:] {
			if err := await(all, goal); err != nil {
				return err
			}
		}
		all.report()
	}
	return orders.Err()
}

// await waits until all of a branch up to a seqno was told: vbucket:uuid:seqno.
func await(all *streams, goal string) error {
	parts := strings.Split(goal, ":")
	vbucket, err := strconv.ParseUint(parts[0], 10, 16)
	if err != nil {
		return err
	}
	seqno, err := strconv.ParseUint(parts[2], 10, 64)
	if err != nil {
		return err
	}
	all.waitFor(func(logs []*vbucketLog) bool {
		log := logs[vbucket]
		return hexUUID(log.uuid) == parts[1] && log.position >= seqno
	})
	return nil
}
