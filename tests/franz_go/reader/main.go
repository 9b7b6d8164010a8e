// Reads a partition with franz-go and prints "offset key" for each record: seeds, topic, first offset, isolation level
// (read_committed or read_uncommitted), how many records there are to come.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	from, _ := strconv.ParseInt(os.Args[3], 10, 64)
	count, _ := strconv.Atoi(os.Args[5])
	level := kgo.ReadUncommitted()
	if os.Args[4] == "read_committed" {
		level = kgo.ReadCommitted()
	}
	places := map[string]map[int32]kgo.Offset{os.Args[2]: {0: kgo.NewOffset().At(from)}}
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.ConsumePartitions(places), kgo.FetchIsolationLevel(level))
	if err != nil {
		panic(err)
	}
	defer client.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for count > 0 {
		fetches := client.PollFetches(ctx)
		for _, failed := range fetches.Errors() {
			panic(failed.Err)
		}
		fetches.EachRecord(func(record *kgo.Record) {
			fmt.Println(record.Offset, string(record.Key))
			count--
		})
	}
}
