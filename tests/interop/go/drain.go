package main

import (
	"bufio"
	"fmt"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"time"

	"github.com/couchbase/gocbcore/v10"
	"github.com/couchbase/gocbcore/v10/memd"
)

// drainer counts what the streams of one pass bring; all else of its methods are the streams'.
type drainer struct {
	*streams
	documents atomic.Int64
	ended     sync.WaitGroup
}

func (d *drainer) SnapshotMarker(gocbcore.DcpSnapshotMarker) {}
func (d *drainer) Mutation(gocbcore.DcpMutation)             { d.documents.Add(1) }
func (d *drainer) Deletion(gocbcore.DcpDeletion)             { d.documents.Add(1) }

func (d *drainer) End(end gocbcore.DcpStreamEnd, err error) {
	if err != nil {
		fmt.Fprintf(os.Stderr, "vbucket %d: the stream ended: %v\n", end.VbID, err)
		os.Exit(1)
	}
	d.ended.Done()
}

// drain measures: for each line of standard input it streams a bucket from its beginning to now and
// says how many documents came, in what time, with how much CPU of this process.
func drain(given options) error {
	orders := bufio.NewScanner(os.Stdin)
	for pass := 0; orders.Scan(); pass++ {
		if err := drainOnce(given, pass); err != nil {
			return err
		}
	}
	return orders.Err()
}

func drainOnce(given options, pass int) error {
	all, snapshot, err := connect(given, fmt.Sprintf("drain-%d-%d", os.Getpid(), pass))
	if err != nil {
		return err
	}
	defer func() { _ = all.agent.Close() }()
	d := &drainer{streams: all}
	if err := endNow(d.streams, snapshot); err != nil {
		return err
	}
	began, cpu := time.Now(), cpuNanos()
	for _, log := range d.logs {
		if log.ended {
			continue
		}
		d.ended.Add(1)
		_, err := all.agent.OpenStream(
			log.vbucket, memd.DcpStreamAddFlagActiveOnly, 0, 0, gocbcore.SeqNo(log.end), 0, 0,
			d, gocbcore.OpenStreamOptions{}, func(_ []gocbcore.FailoverEntry, err error) {
				if err != nil {
					fmt.Fprintf(os.Stderr, "stream not opened: %v\n", err)
					os.Exit(1)
				}
			},
		)
		if err != nil {
			return err
		}
	}
	d.ended.Wait()
	say(map[string]any{
		"documents": d.documents.Load(),
		"nanos":     time.Since(began).Nanoseconds(),
		"cpu_nanos": cpuNanos() - cpu,
	})
	return nil
}

func cpuNanos() int64 {
	var used syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &used); err != nil {
		panic(err)
	}
	return used.Utime.Nano() + used.Stime.Nano()
}
