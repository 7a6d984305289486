// A worker for any queue of lapse: it runs a command for each message, with the value on its standard input.
//
//	go run worker.go orders ./handle --and options
//
// It needs franz-go, and nothing of lapse: docs/protocol.md is all that it knows.
// The brokers are those of KAFKA_BOOTSTRAP_SERVERS (localhost:9092 by default).
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

const heartbeatTimeout = 30 * time.Second

type worker struct {
	handler  []string
	me       string
	client   *kgo.Client
	epochs   map[int32]int64
	commands string
}

type answer struct {
	Code  string `json:"code"`
	Error string `json:"error"`
}

// say sends a command to a shard, and waits until Kafka has it.
func (w *worker) say(ctx context.Context, partition int32, command string, fields map[string]any) {
	all := map[string]any{"command": command, "subscription": w.me, "id": command}
	for name, value := range fields {
		all[name] = value
	}
	value, err := json.Marshal(all)
	if err != nil {
		log.Fatal(err)
	}
	record := &kgo.Record{Topic: w.commands, Partition: partition, Value: value}
	if err := w.client.ProduceSync(ctx, record).FirstErr(); err != nil {
		log.Fatalf("%s was not written: %v", command, err)
	}
}

func (w *worker) subscribe(ctx context.Context, partition int32) {
	w.say(ctx, partition, "subscribe", map[string]any{
		"max_backlog": 1, "heartbeat_timeout_ms": heartbeatTimeout.Milliseconds(),
	})
}

func (w *worker) heartbeats(ctx context.Context, partitions []int32) {
	for range time.Tick(heartbeatTimeout / 3) {
		for _, partition := range partitions {
			w.say(ctx, partition, "heartbeat", map[string]any{"answer": "errors"})
		}
	}
}

// expired tells whether a message is past its deadline; one without a deadline never is, nor one of a queue that
// ignores lifetimes.
func expired(told map[string]string) bool {
	if _, ignored := told["lapse-lifetimes"]; ignored {
		return false
	}
	ms, err := strconv.ParseInt(told["lapse-expires-at-ms"], 10, 64)
	return err == nil && !time.Now().Before(time.UnixMilli(ms))
}

// handle runs the program on a value, and tells whether it succeeded.
func (w *worker) handle(ctx context.Context, value []byte) bool {
	command := exec.CommandContext(ctx, w.handler[0], w.handler[1:]...)
	command.Stdin, command.Stdout, command.Stderr = bytes.NewReader(value), os.Stdout, os.Stderr
	err := command.Run()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) && ctx.Err() == nil {
		log.Printf("%s: %v", w.handler[0], err)
	}
	return err == nil
}

func (w *worker) work(ctx context.Context, partition int32, epoch int64, told map[string]string, value []byte) {
	handling := ctx
	if until, leased := told["lapse-lease-until-ms"]; leased { // absent on an at-most-once queue
		ms, err := strconv.ParseInt(until, 10, 64)
		if err != nil || !time.Now().Before(time.UnixMilli(ms)) {
			return // the lease is over: the message is somebody else's
		}
		var cancel context.CancelFunc
		handling, cancel = context.WithDeadline(ctx, time.UnixMilli(ms))
		defer cancel()
	}
	done := !expired(told) && w.handle(handling, value) // a cancel of an expired message ends its life
	name := fmt.Sprintf("%s#%s@%d", told["lapse-bookmark"], told["lapse-delivery-count"], epoch)
	fields := map[string]any{"bookmarks": []string{name}, "answer": "errors"}
	if done {
		w.say(ctx, partition, "acknowledge", fields)
		return
	}
	fields["delay_ms"] = 1000
	w.say(ctx, partition, "cancel", fields)
}

func (w *worker) read(ctx context.Context, record *kgo.Record) {
	told := map[string]string{}
	for _, header := range record.Headers { // lapse's own come first
		if _, known := told[header.Key]; !known {
			told[header.Key] = string(header.Value)
		}
	}
	epoch, _ := strconv.ParseInt(told["lapse-epoch"], 10, 64)
	if epoch < w.epochs[record.Partition] {
		return // written by a shard's former owner
	}
	w.epochs[record.Partition] = epoch
	if told["lapse-subscription"] != w.me {
		return
	}
	switch told["lapse-kind"] {
	case "delivery":
		w.work(ctx, record.Partition, epoch, told, record.Value)
	case "answer":
		var said answer
		if err := json.Unmarshal(record.Value, &said); err != nil {
			log.Printf("an answer cannot be read: %v", err)
			return
		}
		switch said.Code {
		case "":
		case "deleted":
			log.Fatal(said.Error)
		case "unknown_subscription":
			w.subscribe(ctx, record.Partition)
		default:
			log.Print(said.Error)
		}
	}
}

func main() {
	if len(os.Args) < 3 {
		log.Fatal("worker QUEUE COMMAND [ARGUMENT...]")
	}
	servers := os.Getenv("KAFKA_BOOTSTRAP_SERVERS")
	if servers == "" {
		servers = "localhost:9092"
	}
	ctx := context.Background()
	client, err := kgo.NewClient(
		kgo.SeedBrokers(strings.Split(servers, ",")...),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.FetchIsolationLevel(kgo.ReadCommitted()),
	)
	if err != nil {
		log.Fatal(err)
	}
	defer client.Close()
	host, _ := os.Hostname()
	queue := os.Args[1]
	w := &worker{
		handler:  os.Args[2:],
		me:       fmt.Sprintf("worker-%s-%d-%d", host, os.Getpid(), time.Now().UnixNano()),
		client:   client,
		epochs:   map[int32]int64{},
		commands: "lapse." + queue + ".commands",
	}
	deliveries := "lapse." + queue + ".deliveries"
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, deliveries)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		log.Fatalf("%s: %v", deliveries, err)
	}
	var partitions []int32
	places := map[int32]kgo.Offset{}
	ends.Each(func(end kadm.ListedOffset) {
		partitions = append(partitions, end.Partition)
		places[end.Partition] = kgo.NewOffset().At(end.Offset)
	})
	client.AddConsumePartitions(map[string]map[int32]kgo.Offset{deliveries: places}) // first the end, then subscribe
	for _, partition := range partitions {
		w.subscribe(ctx, partition)
	}
	go w.heartbeats(ctx, partitions)
	for {
		fetches := client.PollFetches(ctx)
		fetches.EachError(func(topic string, partition int32, err error) {
			log.Printf("%s, partition %d: %v", topic, partition, err)
		})
		fetches.EachRecord(func(record *kgo.Record) { w.read(ctx, record) })
	}
}
