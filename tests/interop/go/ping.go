package main

import (
	"fmt"
	"time"

	"github.com/couchbase/gocbcore/v10"
)

// ping starts as go-dcp does, with an agent for documents beside the one for streams: it waits until
// all nodes answer over both protocols, then asks what go-dcp asks, and says what it was told.
func ping(given options) error {
	agent, err := documentAgent(given)
	if err != nil {
		return err
	}
	defer func() { _ = agent.Close() }()
	told := map[string]any{"event": "pinged"}
	if err := pingNodes(agent, told); err != nil {
		return err
	}
	if err := collectionID(agent, told); err != nil {
		return err
	}
	for _, path := range []string{"/pools", "/pools/default/buckets/" + given.bucket, "/whoami"} {
		if err := get(agent, path, told); err != nil {
			return err
		}
	}
	say(told)
	return nil
}

// documentAgent returns an agent for documents, when all nodes answer.
func documentAgent(given options) (*gocbcore.Agent, error) {
	config, err := agentConfig(given)
	if err != nil {
		return nil, err
	}
	agent, err := gocbcore.CreateAgent(&gocbcore.AgentConfig{
		BucketName:           config.BucketName,
		SeedConfig:           config.SeedConfig,
		SecurityConfig:       config.SecurityConfig,
		CompressionConfig:    config.CompressionConfig,
		IoConfig:             config.IoConfig,
		DefaultRetryStrategy: config.DefaultRetryStrategy,
	})
	if err != nil {
		return nil, err
	}
	if err := waitUntilReady(agent); err != nil {
		_ = agent.Close()
		return nil, err
	}
	return agent, nil
}

func pingNodes(agent *gocbcore.Agent, told map[string]any) error {
	names := map[gocbcore.ServiceType]string{
		gocbcore.MemdService: "memd", gocbcore.MgmtService: "mgmt",
	}
	deadline := time.Now().Add(patience)
	options := gocbcore.PingOptions{
		ServiceTypes: []gocbcore.ServiceType{gocbcore.MemdService, gocbcore.MgmtService},
		KVDeadline:   deadline,
		MgmtDeadline: deadline,
	}
	return wait(func(done func(error)) (gocbcore.PendingOp, error) {
		return agent.Ping(options, func(result *gocbcore.PingResult, err error) {
			if err == nil {
				for service, endpoints := range result.Services {
					well := 0
					for _, endpoint := range endpoints {
						if endpoint.State == gocbcore.PingStateOK {
							well++
						}
					}
					told[names[service]] = well
				}
			}
			done(err)
		})
	})
}

func collectionID(agent *gocbcore.Agent, told map[string]any) error {
	return wait(func(done func(error)) (gocbcore.PendingOp, error) {
		return agent.GetCollectionID("_default", "_default", gocbcore.GetCollectionIDOptions{},
			func(result *gocbcore.GetCollectionIDResult, err error) {
				if err == nil {
					told["collection"] = result.CollectionID
				}
				done(err)
			})
	})
}

func get(agent *gocbcore.Agent, path string, told map[string]any) error {
	request := &gocbcore.HTTPRequest{
		Service: gocbcore.MgmtService, Method: "GET", Path: path, Deadline: time.Now().Add(patience),
	}
	return wait(func(done func(error)) (gocbcore.PendingOp, error) {
		return agent.DoHTTPRequest(request, func(response *gocbcore.HTTPResponse, err error) {
			if err == nil {
				told[path] = response.StatusCode
				err = response.Body.Close()
			}
			done(err)
		})
	})
}

// wait begins an operation and returns what its callback gave to done.
func wait(begin func(done func(error)) (gocbcore.PendingOp, error)) error {
	ended := make(chan error, 1)
	if _, err := begin(func(err error) { ended <- err }); err != nil {
		return fmt.Errorf("not begun: %w", err)
	}
	return <-ended
}
