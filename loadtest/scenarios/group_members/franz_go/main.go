// Members of one consumer group that read and commit until the process is killed. Prints a line for each rebalance.
// Arguments: bootstrap servers, topic, group and client-id, protocol (classic or consumer), members.
package main

import (
	"context"
	"fmt"
	"os"
	"strconv"
	"sync"

	"github.com/twmb/franz-go/pkg/kgo"
)

func main() {
	members, _ := strconv.Atoi(os.Args[5])
	var output sync.Mutex
	report := func(event string) func(context.Context, *kgo.Client, map[string][]int32) {
		return func(_ context.Context, _ *kgo.Client, partitions map[string][]int32) {
			output.Lock()
			defer output.Unlock()
			if len(partitions) > 0 {
				fmt.Println(event)
			}
		}
	}
	var done sync.WaitGroup
	for range members {
		options := []kgo.Opt{
			kgo.SeedBrokers(os.Args[1]), kgo.ConsumeTopics(os.Args[2]), kgo.ConsumerGroup(os.Args[3]), kgo.ClientID(os.Args[3]),
			kgo.OnPartitionsAssigned(report("assigned")), kgo.OnPartitionsRevoked(report("revoked")),
			kgo.OnPartitionsLost(report("lost")),
		}
		if os.Args[4] == "consumer" {
			options = append(options, kgo.Balancers(kgo.RangeBalancer()), kgo.ServerSideBalancer())
		}
		client, err := kgo.NewClient(options...)
		if err != nil {
			panic(err)
		}
		done.Add(1)
		go func() {
			defer done.Done()
			for {
				if fetched := client.PollFetches(context.Background()); fetched.NumRecords() > 0 {
					output.Lock()
					fmt.Println("records", fetched.NumRecords())
					output.Unlock()
				}
			}
		}()
	}
	done.Wait()
}
