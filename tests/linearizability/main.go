// Checks recorded histories for linearizability with Porcupine, one key at a time.
//
// Standard input: one operation a line, as JSON.
//
//	{"key": "log 0", "kind": "append", "client": 1, "call": 10, "return": 25, "offset": 7}
//	{"key": "log 0", "kind": "end", "client": 2, "call": 30, "return": 35, "offset": 8}
//	{"key": "offset g", "kind": "write", "client": 3, "call": 12, "return": null, "value": 41}
//	{"key": "offset g", "kind": "read", "client": 3, "call": 50, "return": 60, "value": 41}
//
// Times are of one clock. A return of null is an operation whose outcome its client does not know: it may have its
// effect at any time after its call. A key is a log (append: the record got that offset; end: so many records are
// there) or a register (write, read; -1 before the first write).
//
// Standard output: the keys that are not linearizable, as a JSON object with the reason. Exit code 0 whatever they are,
// 2 for input that cannot be read.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

const timeout = 60 * time.Second

type operation struct {
	Key    string `json:"key"`
	Kind   string `json:"kind"`
	Client int    `json:"client"`
	Call   int64  `json:"call"`
	Return *int64 `json:"return"`
	Offset int64  `json:"offset"`
	Value  int64  `json:"value"`
}

// The state of a log is its length, that of a register its value.
func step(state, input, _ interface{}) (bool, interface{}) {
	now, asked := state.(int64), input.(operation)
	switch asked.Kind {
	case "append":
		return asked.Offset == now, now + 1
	case "end":
		return asked.Offset == now, now
	case "write":
		return true, asked.Value
	default: // read
		return asked.Value == now, now
	}
}

func model(first int64) porcupine.Model {
	return porcupine.Model{Init: func() interface{} { return first }, Step: step}
}

func read() (map[string][]porcupine.Operation, map[string]int64, error) {
	histories, first := map[string][]porcupine.Operation{}, map[string]int64{}
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var one operation
		if err := json.Unmarshal(lines.Bytes(), &one); err != nil {
			return nil, nil, fmt.Errorf("%s: %w", lines.Text(), err)
		}
		switch one.Kind {
		case "append", "end":
			first[one.Key] = 0
		case "write", "read":
			first[one.Key] = -1
		default:
			return nil, nil, fmt.Errorf("kind %q: expected append, end, write or read", one.Kind)
		}
		ended := int64(math.MaxInt64)
		if one.Return != nil {
			ended = *one.Return
		}
		histories[one.Key] = append(histories[one.Key], porcupine.Operation{
			ClientId: one.Client, Input: one, Call: one.Call, Output: nil, Return: ended,
		})
	}
	return histories, first, lines.Err()
}

func main() {
	histories, first, err := read()
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	failed := map[string]string{}
	for key, history := range histories {
		switch porcupine.CheckOperationsTimeout(model(first[key]), history, timeout) {
		case porcupine.Illegal:
			failed[key] = "not linearizable"
		case porcupine.Unknown:
			failed[key] = fmt.Sprintf("not decided within %s", timeout)
		}
	}
	if err := json.NewEncoder(os.Stdout).Encode(failed); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
}
