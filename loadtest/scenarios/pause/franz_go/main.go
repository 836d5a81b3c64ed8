// Sends numbered records at a steady pace and prints how many failed.
// Arguments: bootstrap servers, topic, records, records per second.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	count, _ := strconv.Atoi(os.Args[3])
	pace, _ := strconv.ParseFloat(os.Args[4], 64)
	client, err := kgo.NewClient(kgo.SeedBrokers(os.Args[1]), kgo.RecordPartitioner(kgo.ManualPartitioner()))
	if err != nil {
		panic(err)
	}
	defer client.Close()
	var failed atomic.Int64
	var first atomic.Value
	var done sync.WaitGroup
	begun := time.Now()
	for number := range count {
		time.Sleep(time.Until(begun.Add(time.Duration(float64(number) / pace * float64(time.Second)))))
		value := fmt.Appendf(nil, "%08d%0992d", number, 0)
		done.Add(1)
		record := &kgo.Record{Topic: os.Args[2], Partition: int32(number % 2), Value: value}
		client.Produce(context.Background(), record, func(_ *kgo.Record, err error) {
			if err != nil {
				failed.Add(1)
				first.CompareAndSwap(nil, err.Error())
			}
			done.Done()
		})
	}
	done.Wait()
	fmt.Println("failed", failed.Load(), first.Load())
}
