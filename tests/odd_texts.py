"""Texts that look like Shardy's and are mostly not, one in a line, for a comparison with Shardy itself."""

from __future__ import annotations

MESHES = r"""
["x"=0x2]
["x"=02]
["x"=-2]
["x"= - 2]
["x"=+2]
["x"=2.0]
["x"=2e1]
["x"=true]
["x"=false]
["x"=0xG]
["x"=0X2]
["x"=00]
["x"=2_0]
["x"=2],
["x"=2,]
[,]
[]
[], device_ids=[5]
[], device_ids=[]
["x"=2], device_ids=[01, 0]
["x"=2],device_ids=[]
["x"=2], device_ids=[0x1, -0]
["x"=2], device_ids=[1, - 0]
["x"=2], device_ids=[1, -false]
["x"=2], device_ids=[1, false]
["x"=2], device_ids=[true, 0]
["x"=2], "device_ids"=[1, 0]
["x"=2], device_ids=[1 0]
["x"=2], deviceids=[1, 0]
["x"=2
["x"=9223372036854775808]
["x"=18446744073709551616]
["x"=-9223372036854775809]
["x"=0x8000000000000000]
["x"=0x00002]
["x"=2] device_ids=[1, 0]
["x"=2], device_ids [1, 0]
["x"=2], device_ids=1, 0
{"x"=2}
("x"=2)
"x"=2
[x=2]
['x'=2]
["x":2]
["\22"=2]
["\n\t"=2]
["\\ \""=2]
["\q"=2]
["\r"=2]
["\0"=2]
["\00"=2]
["\g0"=2]
["\C3\A9"=2]
["é"=2]
["轴"=2]
[""=2]
[""=1, ""=2]
["x" "y"=2]
["x"=2 "y"=2]
["x"==2]
["x"]
["x"=]
[=2]
["x"=2]]
[["x"=2]
["x"=2]>
["x"=2] // ]
["x"=2] /
["a"=4, "b"=2], device_ids=[0,1,2,3,4,5,6,7]
["a"=1], device_ids=[0]
["a"=1], device_ids=[1]
["x"=2]], device_ids=[1, 0]
""".strip().split("\n")
"""What may stand between `#sdy.mesh<` and `>`."""
BODIES = r"""
[]
[{}]
[{?}]
[{ ? }]
[{?,"x"}]
[{"x"?}]
[{"x",}]
[{"x",?,}]
[{,}]
[{"x" "y"}]
[{},]
[{} {}]
{}
[{}]]
[{}
{}]
[{"x"}
[{"x"}}]
[{"x"}p1]
[{"x"}p01]
[{"x"}p00]
[{"x"}p0]
[{"x"} p0]
[{"x"}p 0]
[{"x"}p9223372036854775807]
[{"x"}p9223372036854775808]
[{"x"}p]
[{"x"}p1a]
[{"x"}p-1]
[{"x"}q1]
[{"x"}p0x1]
[{"x"}p1.5]
[{"x"}p1_0]
[{"x"}p1$]
[{"x"}P1]
[{"x"}pp1]
[{"x"}true]
[p1]
[{}p1]
[{?}p1]
[{"x"}"p1"]
[{"x"}1]
[{"x"}@p1]
[{"x"}i32]
[{"y":(1)2}]
[{"y":( 1 ) 2}]
[{"y" :(1)2}]
[{"y":(-1)2}]
[{"y":(1)-2}]
[{"y":(0x1)0x2}]
[{"y":(true)false}]
[{"y":1)2}]
[{"y":(1)}]
[{"y":()2}]
[{"y":(1 2)}]
[{"y"(1)2}]
[{"y"::(1)2}]
[{"y":(1)2}p1]
[{"y":(9223372036854775808)2}]
[{"y":(1)2.}]
[{y}]
[{'y'}]
[{"y}]
[{y"}]
[{"\79"}]
[{"\7"}]
[{}], replicated={}
[{}], replicated={"x"}
[{}], replicated={"x"}, replicated={"y"}
[{}], unreduced={"x"}, replicated={"y"}
[{}], unreduced={"x"}, replicated={"y"},
[{}], unreduced={"x"} replicated={"y"}
[{}],
[{}], foo={"x"}
[{}], replicated
[{}], replicated = {"x", "y":(1)2}
[{}], replicated={"x",?}
[{}], replicated={?}
[{}], unreduced={}
[{}], "replicated"={"x"}
[{}], replicated={"x"}p1
[{}], replicated=["x"]
[{}], replicated={{"x"}}
[{}], replicated={"x"}, {"y"}
[{}], Replicated={"x"}
[{}], replicatedx={"x"}
[{}], replicated.x={"x"}
[{}] replicated={"x"}
[{}], unreduced={"x"}, unreduced={"y"}
[{}] // ]
""".strip().split("\n")
"""What may stand after `#sdy.sharding<@m, ` and before `>`, on x=2, y=4."""
WHOLES = r"""
#sdy.sharding<@m, [{}]> x
#sdy<sharding<@m, [{}]>>
#sdy<sharding <@m, [{}]> >
#sdy.sharding <@m, [{}]>
#sdy.sharding< @m, [{}]>
#"sdy".sharding<@m, [{}]>
#sdy.sharding<@m, [{}]
#sdy.Sharding<@m, [{}]>
#sdy.shardings<@m, [{}]>
#sdy.sharding<m, [{}]>
#sdy.sharding<@m []>
#sdy.sharding<@m>
#sdy.sharding<[{}]>
#sdy.sharding<@"m", [{}]>
#sdy.sharding<@m::@n, [{}]>
#sdy.sharding
#sdy.sharding<@1, [{}]>
#sdy.sharding<@m-1, [{}]>
#sdy.sharding<@ m, [{}]>
#sdy.sharding<@é, [{}]>
#sdy.sharding<@"\6D", [{}]>
#sdy.sharding<mesh<["x"=2]>, [{}]>
#sdy.sharding<mesh <["x"=2]>, [{}]>
#sdy.sharding<"mesh"<["x"=2]>, [{}]>
#sdy.sharding<>
#sdy.sharding<<["x"=2]>, [{}]>
#sdy.sharding<#sdy.mesh<["x"=2]>, [{}]>
#sdy.sharding<mesh<["x"=2]>, [{"z"}]>
#sdy.sharding<@m,>
#sdy.sharding<mesh<[], device_ids=[3]>, [{"z"}]>
#sdy.sharding<mesh<[], device_ids=[3]>, []>
#sdy.sharding<meshy<["x"=2]>, []>
#sdy.sharding<mesh<["x"=2], device_ids=[0, 1]>, [{"x"}]>
#sdy.sharding<mesh<["x"=2]> [{}]>
#sdy.sharding<mesh["x"=2], [{}]>
#sdy.sharding<@m, [{}]>>
#sdy
#sdy.sharding<@m, [{}] /* c */>
#sdy.sharding<@m, [{}]->>
""".strip().split("\n")
"""Whole shardings, on @m with x=2, y=4."""
COMMENTS = [
    "#sdy.sharding<@m, [{}] // c\n>",
    "#sdy.sharding<@m, [{}] // c\r>",
    "#sdy.sharding<@m, [{}] // ]\n>",
    "#sdy.sharding<@m, [{}] // []\n>",
    "#sdy.sharding<@m, [{}] // >\n>",
    "#sdy.sharding<@m, [{}] // <>\n>",
    "#sdy.sharding<@m, [{}] // <\n>",
    '#sdy.sharding<@m, [{}] // "\n>',
    '#sdy.sharding<@m, [{}] // ">"\n>',
    "#sdy.sharding<@m, [{}] // ->\n>",
    "#sdy.sharding<@m, [{}] // c",
    "#sdy.sharding<@m, [{}]> // c",
    "#sdy.sharding<@m, [{}]> // c\n// d",
    "#sdy.sharding<@m, [{}]> // >\n",
    "#sdy.sharding<@m, [{}] / c\n>",
    "#sdy.sharding<@m, [{}] /* c */>",
    "#sdy.sharding<@m, // c\n[{}]>",
    "#sdy.sharding<@m,\t[\r{ }\n] >",
    "#sdy.sharding<@m, [{}]\x0b>",
    "#sdy.sharding<@m, [{}]\x0c>",
    "#sdy.sharding<@m, [{}]\u00a0>",
]
"""Whole shardings with space and comments in odd places."""
