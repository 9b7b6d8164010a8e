// Package franzgo names the client whose own tests run against the broker (tests/integration/test_clients_franz_go.py).
package franzgo

import _ "github.com/twmb/franz-go/pkg/kgo"
